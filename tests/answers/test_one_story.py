"""Every command tells one story of a run: its typical step, its worst bucket, and which rank is late."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from ddptrace.analysis.savings import LATE
from ddptrace.analysis.summary import summarize
from ddptrace.cli import main
from ddptrace.units import duration
from tests.answers.conftest import Answer, Ask, printed

pytestmark = pytest.mark.alone  # a machine that is crowded by others silences the finding

HOW = pytest.mark.parametrize("how", [(), ("--profile",)], ids=["always on", "profiled"])


def told(answer: Answer, *command: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@HOW
def test_the_typical_step_has_one_length(ask: Ask, how: tuple[str, ...]) -> None:
    answer = ask("late data", *how)
    typical = summarize(answer.result).typical
    assert typical is not None
    run, length = str(answer.run), duration(typical.wall_ns)
    assert f"Typical step {length}" in answer.text
    assert f"Typical step {length}" in printed("watch --once", answer)
    assert told(answer, "analyze", run)["summary"]["typical"]["wall_ns"] == typical.wall_ns
    assert {told(answer, name, run)["recorded_ns"] for name in ("whatif", "advise")} == {typical.wall_ns}
    compared = told(answer, "diff", run, str(ask("nothing").run))
    assert [round(one["step_ns"]) for one in compared["runs"] if one["side"] == "before"] == [typical.wall_ns]


@HOW
def test_the_late_rank_comes_first_everywhere(ask: Ask, how: tuple[str, ...]) -> None:
    answer = ask("late data", *how)
    (late,) = (row.rank for row in answer.result.suspects)
    assert late == 1
    assert (answer.result.savings[0].cause, answer.result.savings[0].where) == (LATE, "rank 1")
    assert answer.said("late-rank").startswith("Rank 1 makes the others wait")
    assert "Rank 1 makes the others wait" in printed("watch --once", answer)
    assert "First make rank 1 as fast as the others" in printed("advise", answer)
    assert told(answer, "advise", str(answer.run))["limits"][0]["rank"] == 1


@HOW
def test_the_most_exposed_bucket_is_one(ask: Ask, how: tuple[str, ...]) -> None:
    answer = ask("heavy layer", *how)
    worst = summarize(answer.result).worst
    assert worst is not None
    assert f"Bucket {worst.index} " in answer.said("exposed-bucket")
    assert f"Bucket {worst.index} " in printed("watch --once", answer)
