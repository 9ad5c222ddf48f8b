"""The benchmark of comparisons: what it says of tries whose truth is known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.diff import Options
from benchmarks.diff_sheet import _sides, sheet, with_longer
from ddptrace.errors import DdptraceError
from tests.sentences import facts
from tests.unit.made_diff import made_run

MS = 1_000_000


def made_try(bucket: int, named: int | None, *, deviations: float = 3, false: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "bucket": bucket,
        "named": named,
        "deviations": deviations,
        "planted_ns": 4 * MS,
        "load": 2.5,
        "false": list(false),
        "is_found": named is not None,
        "step_is_found": named == bucket,
        "change_ns": 4 * MS,
        "low_ns": MS,
        "high_ns": 7 * MS,
        "step_ns": 20 * MS,
    }


def test_the_sheet_counts_what_was_found_named_and_called_different() -> None:
    tries = [made_try(1, 1), made_try(2, 3, deviations=1), made_try(0, None, deviations=2, false=("part idle",))]
    drawn = [
        {
            "runs": runs,
            "draws": 400,
            "added_ns": 8_900_000,
            "false": false,
            "false_step": 9,
            "found": 400,
            "found_step": found,
            "named": 396,
        }
        for runs, false, found in ((6, 20, 399), (8, 21, 379))
    ]
    made = sheet({"ranks": "2"}, {"real": tries, "drawn": drawn})
    equal, differing, kept, *of_draws = map(facts, made.words)
    assert equal == "2 3 missed", "tries without a sure change"
    assert differing == "2.0 2 3 missed 1 missed 1 missed", "median planted; change, step and bucket"
    assert kept == "2.5 3.0 1 1 met 1 met 1 met", "the same, of tries with 2.5 deviations or more"
    # draws, runs a side, false alarms, what was added; the longer step and the bucket
    assert of_draws == ["400 6 5.0 5 met 8.90 99.8 95 met 99.0", "400 8 5.2 5 missed 8.90 94.8 95 missed 99.0"]
    assert made.grids[0].rows[2] == (
        "3",
        "2.5",
        "4.00",
        "2.0",
        "20.0",
        "4.00",
        "1.00 .. 7.00",
        "no",
        "0",
        "-",
        "part idle",
    )


def test_drawn_sides_hold_each_plain_run_once() -> None:
    turns = [{"plain": made_run(k), "equal": made_run(k + 50), "planted": made_run(99)} for k in range(5)]
    one, other = _sides(random.Random(3), turns)
    assert {run.path for run in (*one, *other)} == {
        run.path for turn in turns for run in (turn["plain"], turn["equal"])
    }
    assert all(
        {run.path for run in pair} == {turns[k]["plain"].path, turns[k]["equal"].path}
        for k, pair in enumerate(zip(one, other, strict=True))
    )


def test_what_is_added_to_a_run_is_in_the_step_its_parts_its_phases_and_the_bucket() -> None:
    run = made_run(1)
    added = with_longer(run, 2, 5 * MS).values - run.values
    longer = {
        (one.kind, one.name, one.bucket.index if one.bucket else one.rank)
        for one, ns in zip(run.quantities, added, strict=True)
        if round(ns) == 5 * MS
    }
    assert longer == {
        ("step", "step", None),
        ("part", "exposed_comm", None),
        ("total", "comm", None),
        ("phase", "backward", None),
        ("bucket", "exposed", 2),
        ("bucket", "comm", 2),
        *(("rank", "exposed_comm", rank) for rank in range(4)),
    }
    assert sum(round(ns) != 0 for ns in added) == len(longer)


@pytest.mark.parametrize(
    ("asked", "reason"), [({"steps": 5}, "5 steps are too few"), ({"runs": 1}, "one run per side")]
)
def test_what_cannot_be_compared_is_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(DdptraceError, match=reason):
        Options(**asked)
