"""What findings say of records that were let go: once for all ranks of which the same is left."""

from __future__ import annotations

from dataclasses import replace

from analysis_records import rank, run, step

from ddptrace.analysis import analyze_run
from ddptrace.load.tables import RankRun


def kept_from(number: int, since: int, until: int = 20) -> RankRun:
    """A rank of which the steps from `since` on are left."""
    marks = [step(k, 100 * k, 100 * k + 100) for k in range(since, until)]
    return replace(rank(number, steps=marks), let_go=5)


def told(*ranks: RankRun) -> str:
    (finding,) = [one for one in analyze_run(run(*ranks)).findings if one.code == "records-let-go"]
    return finding.message


def test_ranks_of_which_the_same_is_left_are_named_together() -> None:
    assert "on ranks 0, 1 and 2 of 20 steps those from step 12 on are here. Give" in told(
        *(kept_from(number, 12) for number in range(3))
    )


def test_ranks_of_which_something_else_is_left_are_named_apart() -> None:
    message = told(kept_from(0, 12), kept_from(1, 13), kept_from(2, 12))
    assert "on ranks 0 and 2 of 20 steps those from step 12 on are here; of rank 1's 20 steps those from" in message
    assert told(*(kept_from(number, 10 + number) for number in range(3))).count("from step") == 2


def test_it_is_said_that_files_go_whole_and_which_bounds_to_raise() -> None:
    message = told(kept_from(0, 12))
    assert "a whole file at a time" in message and "nbytes=...) more, and steps= where you gave it" in message
