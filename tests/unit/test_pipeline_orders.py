"""Orders of schedules by hand: how long they take, with forwards of 1 and backwards of 2."""

from __future__ import annotations

import pytest

from ddptrace.analysis.pipeline.schedule import STAGES, Computation, length, order_of
from ddptrace.analysis.tables.parallelism import Work
from ddptrace.analysis.whatif.tables import Schedule

FORWARD, BACKWARD = 2, 4


def turn(schedule: Schedule, ranks: int, microbatches: int) -> int | None:
    """Length of a turn; layers are divided evenly over the stages of the schedule."""
    orders = [order_of(schedule, rank, ranks, microbatches) for rank in range(ranks)]
    times = {Work.FORWARD: FORWARD // STAGES[schedule], Work.BACKWARD: BACKWARD // STAGES[schedule]}
    return length(orders, {one: times[Work(one.work)] for order in orders for one in order})


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 4), (4, 8), (4, 2), (8, 32)])
def test_without_stages_to_interleave_the_bubble_is_that_of_all_other_ranks(ranks: int, microbatches: int) -> None:
    expected = (microbatches + ranks - 1) * (FORWARD + BACKWARD)
    assert turn("gpipe", ranks, microbatches) == turn("1f1b", ranks, microbatches) == expected


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 32)])
def test_with_two_stages_each_the_bubble_is_half(ranks: int, microbatches: int) -> None:
    bubble = (ranks - 1) * (FORWARD + BACKWARD) // 2
    assert turn("interleaved", ranks, microbatches) == microbatches * (FORWARD + BACKWARD) + bubble


def test_few_forwards_are_ahead_with_1f1b_and_all_with_gpipe() -> None:
    def works(schedule: Schedule) -> str:
        return "".join("F" if one.work == Work.FORWARD else "B" for one in order_of(schedule, 0, 2, 3))

    assert works("gpipe") == "FFFBBB"
    assert works("1f1b") == "FFBFBB"


def test_every_stage_computes_every_microbatch_once() -> None:
    found = [one for rank in range(4) for one in order_of("interleaved", rank, 4, 8)]
    expected = {
        Computation(stage, microbatch, work)
        for stage in range(8)
        for microbatch in range(8)
        for work in (Work.FORWARD, Work.BACKWARD)
    }
    assert len(found) == len(expected) and set(found) == expected
