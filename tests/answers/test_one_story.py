"""Every command tells one story of a run: its typical step, its worst bucket, and which rank is late."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from ddptrace.analysis.savings import LATE
from ddptrace.analysis.summary import summarize
from ddptrace.cli import main
from ddptrace.units import duration, percent
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
    (late,) = answer.result.suspects
    assert late.rank == 1
    assert (answer.result.savings[0].cause, answer.result.savings[0].where) == (LATE, "rank 1")
    won = f"{percent(late.cost_ratio)} of the typical step could be won if rank 1 were as fast as the others"
    assert won in answer.text
    assert answer.said("late-rank").startswith("Rank 1 makes the others wait")
    assert "Rank 1 makes the others wait" in printed("watch --once", answer)
    assert "Make rank 1 as fast as the others" in printed("advise", answer)
    assert told(answer, "advise", str(answer.run))["limits"][0]["rank"] == 1


@HOW
def test_what_the_late_rank_costs_is_one_number_everywhere(ask: Ask, how: tuple[str, ...]) -> None:
    answer = ask("late data", *how)
    (late,) = answer.result.suspects
    typical = summarize(answer.result).typical
    assert typical is not None
    (saving,) = (row for row in answer.result.savings if row.cause == LATE)
    assert late.cost_ratio == late.cost_ns / typical.window_ns == saving.cost_ratio
    run, share = str(answer.run), percent(late.cost_ratio)
    assert f"({share} of the typical step of {duration(typical.window_ns)};" in answer.text
    (evened,) = told(answer, "whatif", run, "--even", "1")["predictions"]
    (advised,) = (one for one in told(answer, "advise", run)["useful"] if one["setting"]["even"] is not None)
    gains = ("gain_ratio", "gain_low_ratio", "gain_high_ratio")
    shares = [ns / typical.window_ns for ns in (late.cost_ns, late.low_ns, late.high_ns)]
    assert [evened[name] for name in gains] == [advised[name] for name in gains] == pytest.approx(shares)
    assert told(answer, "advise", run)["limits"][0]["gain_ratio"] == pytest.approx(late.cost_ratio, rel=1e-3)


@HOW
def test_what_comes_first_is_not_repeated_as_what_else_would_help(ask: Ask, how: tuple[str, ...]) -> None:
    advice = printed("advise", ask("late data", *how))
    assert advice.count("Make rank 1 as fast as the others") == 1
    assert "a faster rank 1" not in advice


@pytest.mark.parametrize("cause", ["late data", "heavy layer", "nothing"])
def test_nothing_is_advised_that_the_forecast_contradicts(ask: Ask, cause: str) -> None:
    answer = ask(cause)
    advice = told(answer, "advise", str(answer.run))
    unchecked = (
        r"(makes the last bucket smaller|the first ones can hide|[Tt]ry a smaller)(?!; `ddptrace advise` predicts)"
    )
    assert advice["caps_mb"] or not re.search(unchecked, answer.text)
    named = {row.rank for row in answer.result.suspects}
    asked = {one["setting"]["even"] for one in advice["useful"]} | {one["rank"] for one in advice["limits"]}
    assert asked - {None} <= named


@HOW
def test_the_most_exposed_bucket_is_one(ask: Ask, how: tuple[str, ...]) -> None:
    answer = ask("heavy layer", *how)
    worst = summarize(answer.result).worst
    assert worst is not None
    assert f"Bucket {worst.index} " in answer.said("exposed-bucket")
    assert f"Bucket {worst.index} " in printed("watch --once", answer)
