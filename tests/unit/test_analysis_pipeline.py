"""Where the time of a pipeline's ranks goes, on schedules whose every instant is known."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from made_pipeline import BACKWARD, FORWARD, all_then_all, equal, one_f_one_b, played

from ddptrace.analysis.intervals import EMPTY, pairs
from ddptrace.analysis.pipeline.schedule import Computation, length, of_typical_stage
from ddptrace.analysis.pipeline.turns import Blocked, Turn, owners
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.parallelism import BubbleRow, Work
from ddptrace.load.tables import Stage, Unit, UnitKind


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


def told(rank: int, *stages: int) -> RankTables:
    """A rank whose profiler file tells its stages."""
    units = [Unit(number, UnitKind.PIPELINE, f"stage {number}", stage=Stage(0, number, (), "", 4)) for number in stages]
    return SimpleNamespace(facts=SimpleNamespace(rank=rank, units=units))  # type: ignore[return-value]


def test_the_ranks_of_a_pipeline_are_told_by_the_files_of_all_of_them() -> None:
    assert owners([told(0, 0, 2), told(1, 1, 3)]) == (0, 1, 0, 1)
    assert owners([told(1, 1, 3)]) == ()  # the file with stages 0 and 2 is missing
    assert owners([told(0, 0), told(1, 1), told(2, 0), told(3, 1)]) == ()  # two copies: which ones belong together?
