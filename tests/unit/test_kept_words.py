"""What findings say of records that were let go: once for all ranks of which the same is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_records import rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.load.tables import RankRun


def kept_from(number: int, since: int, until: int = 20) -> RankRun:
    """A rank of which the steps from `since` on are left."""
    marks = [step(k, 100 * k, 100 * k + 100) for k in range(since, until)]
    return replace(rank(number, steps=marks), let_go=5)


def sampled(number: int, every: int, since: int = 0, until: int = 20) -> RankRun:
    """Of its steps from `since` on, one in `every` was recorded."""
    marks = [step(k, 100 * k, 100 * k + 100) for k in range(since, until)]
    whole, partial = ([one for one in marks if (one.ordinal % every == 0) is is_whole] for is_whole in (True, False))
    return replace(rank(number, steps=whole), partial_steps=tuple(partial), sampled=bool(partial), let_go=5 * since)


def told(*ranks: RankRun, code: str = "records-let-go") -> str:
    (finding,) = [one for one in analyze_run(run(*ranks)).findings if one.code == code]
    return finding.message


def test_ranks_of_which_the_same_is_left_are_named_together() -> None:
    assert ": ranks 0, 1 and 2 kept steps 12 to 19 of 20. Raise" in told(
        *(kept_from(number, 12) for number in range(3))
    )


def test_ranks_of_which_something_else_is_left_are_named_apart() -> None:
    message = told(kept_from(0, 12), kept_from(1, 13), kept_from(2, 12))
    assert ": ranks 0 and 2 kept steps 12 to 19 of 20; rank 1 kept steps 13 to 19 of 20" in message
    assert told(*(kept_from(number, 10 + number) for number in range(3))).count("kept steps") == 2


def test_it_is_said_that_files_go_whole_and_which_bounds_to_raise() -> None:
    message = told(kept_from(0, 12))
    assert "a whole file at a time" in message
    assert "Raise nbytes= of ddptrace.Keep, and steps= if you gave it" in message


@pytest.mark.parametrize("whole", [replace(kept_from(0, 0), let_go=0), sampled(0, 1)], ids=["bounded", "sampled"])
def test_where_every_step_is_here_nothing_is_said(whole: RankRun) -> None:
    codes = {one.code for one in analyze_run(run(whole)).findings}
    assert not codes & {"records-let-go", "steps-not-recorded"}


def test_where_some_were_not_recorded_it_is_said_how_many_of_how_many_are_here() -> None:
    assert "of the 20 steps of rank 0, 4 were recorded, and 16 only with their begin" in told(
        sampled(0, 5), code="steps-not-recorded"
    )


def test_of_those_that_were_not_recorded_and_let_go_besides_all_are_counted() -> None:
    """Of the 20, steps 12 to 19 are left, of which 15 was recorded."""
    message = told(sampled(0, 5, since=12), code="steps-not-recorded")
    assert "of the 20 steps of rank 0, 1 were recorded, and 7 only with their begin" in message
    message = told(sampled(0, 5, since=12))
    assert ": rank 0 kept steps 15 to 19 of 20, as far as they were recorded. Raise" in message


def test_of_a_run_that_ends_while_its_first_file_is_let_go_that_none_is_whole_is_said() -> None:
    none = replace(rank(0), partial_steps=(step(7, 700, 800),), let_go=5)
    assert ": rank 0 kept no whole step of 8. Raise" in told(none)
