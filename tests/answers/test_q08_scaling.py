"""Why does the step get slower with more workers?"""

from __future__ import annotations

import re

from ddptrace import diff
from ddptrace.render.diff.terminal import diff_text
from tests.answers.conftest import Ask


def told(cause: str, ask: Ask) -> str:
    """What `ddptrace diff` prints of one rank and two."""
    one, two = ask(cause, ranks=1), ask(cause)
    return " ".join(diff_text(diff(one.run, two.run)).split())


def test_what_is_lost_is_told_with_what_each_rank_costs_and_where_it_goes(ask: Ask) -> None:
    said = told("heavy layer", ask)
    found = re.search(
        r"With 2 ranks instead of 1 a step takes ([\d.]+) times as long\. .* an efficiency of (\d+) %", said
    )
    assert found and float(found[1]) > 1.2
    assert abs(100 / float(found[1]) - int(found[2])) < 1
    assert re.search(r"each further rank costs [\d.]+ ms more, and [> \d]+ % of that is exposed communication", said)
    assert "names the bucket" in said
    assert re.search(r"compute [\d.]+ [\d.]+ .* exposed communication [\d.]+ [\d.]+", said)


def test_of_as_many_ranks_nothing_is_said(ask: Ask) -> None:
    """Whatever else is slower."""
    assert "ranks instead of" not in diff_text(diff(ask("accumulated").run, ask("heavy layer").run))
