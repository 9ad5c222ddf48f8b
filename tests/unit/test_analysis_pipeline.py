"""Where the time of a pipeline's ranks goes, on schedules whose every instant is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ddptrace.analysis.intervals import EMPTY, pairs
from ddptrace.analysis.pipeline.messages import with_other
from ddptrace.analysis.pipeline.rows import PipelineFacts
from ddptrace.analysis.pipeline.schedule import Computation, input_of, length, of_typical_stage
from ddptrace.analysis.pipeline.turns import Blocked, Turn
from ddptrace.analysis.tables.pipeline import BubbleRow, MessageRow, PipelineRow, Work

FORWARD, BACKWARD = 100, 200


def one_f_one_b(stages: int, microbatches: int) -> list[list[Computation]]:
    """One forward, one backward, after as many forwards as there are stages to come."""
    orders = []
    for stage in range(stages):
        first = min(stages - stage, microbatches)
        forward = [Computation(stage, k, Work.FORWARD) for k in range(microbatches)]
        backward = [Computation(stage, k, Work.BACKWARD) for k in range(microbatches)]
        order = forward[:first]
        for k in range(microbatches):
            order += [backward[k], *forward[first + k : first + k + 1]]
        orders.append(order)
    return orders


def all_then_all(stages: int, microbatches: int) -> list[list[Computation]]:
    """GPipe: all forwards, then all backwards."""
    works = (Work.FORWARD, Work.BACKWARD)
    return [[Computation(stage, k, work) for work in works for k in range(microbatches)] for stage in range(stages)]


def equal(orders: Sequence[Sequence[Computation]]) -> dict[Computation, int]:
    return {one: FORWARD if one.work == Work.FORWARD else BACKWARD for order in orders for one in order}


def played(
    orders: Sequence[Sequence[Computation]], durations: Mapping[Computation, int], transfer: int = 0
) -> tuple[Turn, dict[int, Blocked]]:
    """Run the orders: each computation begins when its rank is free and its input has come."""
    ends: dict[Computation, int] = {}
    rows: list[PipelineRow] = []
    waits: dict[int, list[MessageRow]] = {rank: [] for rank in range(len(orders))}
    free, at = [0] * len(orders), [0] * len(orders)
    while any(at[rank] < len(order) for rank, order in enumerate(orders)):
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                one = order[at[rank]]
                needed = input_of(one, durations)
                if needed is not None and needed not in ends:
                    break
                begin = free[rank]
                if needed is not None:
                    begin = max(begin, ends[needed] + transfer)
                    waits[rank].append(received(rank, one, needed, free[rank], begin, ends[needed]))
                free[rank] = ends[one] = begin + durations[one]
                rows.append(PipelineRow(rank, 1, 0, 1, one.stage, one.microbatch, one.work, begin, ends[one]))
                at[rank] += 1
    stages = tuple(rank for rank, order in enumerate(orders) for _ in {one.stage for one in order})
    microbatches = len({one.microbatch for one in durations})
    turn = Turn.of(rows, PipelineFacts(stages, "Schedule", microbatches))
    assert turn is not None
    return turn, {rank: Blocked.of(mine) for rank, mine in waits.items()}


def received(rank: int, one: Computation, needed: Computation, launch: int, end: int, sent: int) -> MessageRow:
    phase = "forward" if one.work == Work.FORWARD else "backward"
    row = MessageRow(
        rank, 1, 0, "recv", "0", needed.stage, rank, 1, phase, one.microbatch, 0, 8, 1, launch, launch, end
    )
    return with_other(row, replace(row, op="send", rank=needed.stage, launch_at_ns=sent))


def bubbles(turn: Turn, blocked: Mapping[int, Blocked]) -> list[BubbleRow]:
    rows = list(turn.bubbles(blocked, {}))
    for row in rows:
        parts = row.compute_ns, row.bubble_ns, row.stage_wait_ns, row.transfer_ns, row.other_ns
        assert sum(parts) == row.window_ns and min(parts) >= 0
    return rows


@pytest.mark.parametrize("make", [one_f_one_b, all_then_all])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (3, 1)])
def test_equal_stages_have_the_bubble_of_the_textbook(make: object, stages: int, microbatches: int) -> None:
    orders = make(stages, microbatches)  # type: ignore[operator]
    for row in bubbles(*played(orders, equal(orders))):
        assert row.bubble_ns == row.ideal_bubble_ns == (stages - 1) * (FORWARD + BACKWARD)
        assert row.compute_ns == microbatches * (FORWARD + BACKWARD)
        assert (row.stage_wait_ns, row.transfer_ns, row.other_ns) == (0, 0, 0)
        assert row.window_ns == row.ideal_window_ns == (microbatches + stages - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize("slow", range(4))
def test_what_a_slow_stage_costs_is_no_bubble(slow: int) -> None:
    orders = one_f_one_b(4, 8)
    durations = {one: time * (2 if one.stage == slow else 1) for one, time in equal(orders).items()}
    rows = bubbles(*played(orders, durations))
    assert all(row.ideal_bubble_ns == 3 * (FORWARD + BACKWARD) for row in rows)
    for row in rows:
        assert row.stage_wait_ns == (row.window_ns - row.compute_ns - row.bubble_ns)
        assert (row.stage_wait_ns >= 5 * (FORWARD + BACKWARD)) == (row.rank != slow), row
        assert row.bubble_ns == row.ideal_bubble_ns or row.rank == slow


def test_messages_take_time_of_their_own() -> None:
    orders = all_then_all(2, 4)
    quick, late = (bubbles(*played(orders, equal(orders), transfer)) for transfer in (0, 7))
    assert [row.bubble_ns for row in late] == [row.bubble_ns for row in quick]
    assert [row.transfer_ns for row in late] == [7, 7]  # the first of each direction; the others come while it computes


def test_an_update_while_the_others_still_compute_is_no_bubble() -> None:
    turn, blocked = played(orders := all_then_all(2, 4), equal(orders))
    last = turn.by_rank[1][-1].end_at_ns
    rows = list(turn.bubbles(blocked, {1: pairs([(last + 10, last + 60)]), 0: EMPTY}))
    assert [row.other_ns for row in rows] == [0, 50]
    assert rows[1].bubble_ns == rows[0].bubble_ns - 50


def test_the_gaps_before_computations_are_told_apart() -> None:
    turn, blocked = played(orders := one_f_one_b(2, 4), equal(orders), 7)
    rows = list(turn.computations(blocked))
    assert all(row.before_ns == (row.peer_wait_ns or 0) + (row.transfer_ns or 0) + (row.other_ns or 0) for row in rows)
    first = next(row for row in rows if row.rank == 1)
    assert (first.before_ns, first.peer_wait_ns, first.transfer_ns) == (FORWARD + 7, FORWARD, 7)


def test_a_turn_with_missing_computations_is_not_judged() -> None:
    turn, _ = played(orders := one_f_one_b(2, 4), equal(orders))
    assert Turn.of(turn.by_rank[0], turn.facts) is None


def test_orders_that_wait_for_each_other_have_no_length() -> None:
    crossed = [
        [Computation(0, 0, Work.BACKWARD), Computation(0, 0, Work.FORWARD)],
        [Computation(1, 0, Work.FORWARD), Computation(1, 0, Work.BACKWARD)],
    ]
    assert length(crossed, equal(crossed)) is None
    assert length(one_f_one_b(2, 4), equal(one_f_one_b(2, 4))) == 5 * (FORWARD + BACKWARD)


def test_backward_in_two_parts_passes_gradients_on_after_the_first() -> None:
    orders = [
        [Computation(0, 0, work) for work in (Work.FORWARD, Work.INPUTS, Work.WEIGHTS)],
        [Computation(1, 0, work) for work in (Work.FORWARD, Work.INPUTS, Work.WEIGHTS)],
    ]
    assert length(orders, dict.fromkeys((one for order in orders for one in order), 10)) == 50


def test_a_typical_stage_is_not_the_slow_one() -> None:
    orders = one_f_one_b(2, 4)
    durations = {one: time + (one.stage == 1) * 50 for one, time in equal(orders).items()}
    assert set(of_typical_stage(durations).values()) == {FORWARD, BACKWARD}
