"""The critical path: pieces that touch, and who was waited for."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from ddptrace.analysis.ranks.critical_path import critical_path
from ddptrace.analysis.ranks.crossings import ComparedRanks
from ddptrace.analysis.tables.ranks import PathRow
from ddptrace.schema import Phase
from tests.unit.analysis_records import call, mark, rank, step
from tests.unit.made_training import MS, Plan, Player, analyzed, only, played

Told = tuple[int, int | None, str, float, float]


def path(plan: Plan) -> tuple[PathRow, ...]:
    return critical_path(ComparedRanks(*played(plan)))


def told(rows: tuple[PathRow, ...]) -> list[Told]:
    """Rank, step, what, begin and end in ms."""
    return [(row.rank, row.step, row.what, row.begin_at_ns / MS, row.end_at_ns / MS) for row in rows]


def test_the_path_goes_through_the_rank_that_came_last_and_the_transfers_after_it() -> None:
    # one step: forward until 6, backward until 14; rank 1 takes 8 ms longer for its forward
    rows = path(Plan(2, 1, late=only(1, "forward", 8 * MS)))
    assert told(rows) == [
        (1, 0, "data", 0, 1), (1, 0, "forward", 1, 14), (1, 0, "backward", 14, 22),
        (0, 0, "transfer", 22, 25), (0, 0, "optimizer", 25, 27),
    ]  # fmt: skip
    assert [row.match for row in rows] == [None, None, None, 1, None]


def test_a_transfer_that_had_to_queue_is_reached_through_the_one_before_it() -> None:
    # launches at 10 and 14 and transfers of 10 ms: the second one begins at 20
    rows = path(Plan(2, 1, transfer=10 * MS))
    assert told(rows) == [
        (0, 0, "data", 0, 1), (0, 0, "forward", 1, 6), (0, 0, "backward", 6, 10),
        (0, 0, "transfer", 10, 20), (0, 0, "transfer", 20, 30), (0, 0, "optimizer", 30, 32),
    ]  # fmt: skip


def test_communication_that_ends_before_anybody_waits_for_it_is_not_on_the_path() -> None:
    rows = path(Plan(2, 1, backward=(4 * MS, 20 * MS), transfer=MS))
    assert [row[2:] for row in told(rows)] == [
        ("data", 0, 1), ("forward", 1, 6), ("backward", 6, 30), ("transfer", 30, 31), ("optimizer", 31, 33),
    ]  # fmt: skip


def test_the_path_goes_through_a_collective_that_ranks_were_only_seen_to_wait_for() -> None:
    # its first collective takes 2 ms; rank 1 is late for that of the second step, by its update
    rows = path(Plan(2, 2, loss=2 * MS, late=only(1, "optimizer", 8 * MS, lambda at: at == 0)))
    assert [row for row in told(rows) if row[2] in ("optimizer", "transfer")] == [
        (0, 0, "transfer", 0, 2), (1, 0, "transfer", 16, 19), (1, 0, "optimizer", 19, 29),
        (0, 1, "transfer", 29, 31), (0, 1, "transfer", 45, 48), (0, 1, "optimizer", 48, 50),
    ]  # fmt: skip
    assert [row.match for row in rows if row.what == "transfer"] == [None, 1, None, 3]


def test_over_several_steps_a_rank_that_is_late_in_some_is_on_the_path_in_these() -> None:
    rows = path(Plan(3, 12, late=lambda one, at: {"forward": 8 * MS} if one == at % 3 else {}))
    forward = Counter((row.step, row.rank) for row in rows if row.what == "forward")
    assert forward == Counter((at, at % 3) for at in range(12))


@pytest.mark.parametrize("seed", range(12))
def test_the_pieces_touch_and_add_up_to_the_time_from_the_begin_to_the_last_end(seed: int) -> None:
    rng = random.Random(seed)
    parts = ("data", "forward", "backward 0", "backward 1", "optimizer", "other")
    times = {(one, at): {part: rng.randint(0, 9 * MS) for part in parts} for one in range(4) for at in range(20)}
    groups = rng.choice([(), ((0, 1, 2, 3),), ((0, 2), (1, 3))])
    plan = Plan(4, 20, late=lambda one, at: times[one, at], groups=groups, transfer=rng.randint(0, 9 * MS))
    player = Player(plan)
    rows = critical_path(ComparedRanks(*analyzed(player.runs())))
    assert rows[0].begin_at_ns == 0
    assert rows[-1].end_at_ns == max(steps[-1].end_at_ns for steps in player.steps)
    assert all(one.end_at_ns == following.begin_at_ns for one, following in pairwise(rows))
    assert all(row.end_at_ns > row.begin_at_ns for row in rows)
    # no transfer on it is longer than the transfers are, and none is passed twice
    assert all(row.end_at_ns - row.begin_at_ns <= plan.transfer for row in rows if row.what == "transfer")
    assert max(Counter(row.match for row in rows if row.match is not None).values(), default=1) == 1


@pytest.mark.parametrize("shift_ms", [-40, -7, 7, 40])
def test_a_clock_that_is_wrong_makes_no_piece_run_backwards(shift_ms: int) -> None:
    # GIVEN a path that begins on rank 0, whose last update is long
    tables, matches = played(Plan(2, 10, late=only(0, "optimizer", 60 * MS, lambda at: at == 9)))
    trail = tables[1].trail
    apart = replace(tables[1], trail=replace(trail, at_ns=trail.at_ns + shift_ms * MS))
    rows = critical_path(ComparedRanks([tables[0], apart], matches))
    assert rows
    assert all(a.end_at_ns == b.begin_at_ns for a, b in pairwise(rows))
    assert all(row.end_at_ns > row.begin_at_ns for row in rows)


def test_a_wait_for_what_is_over_is_the_ranks_own_time() -> None:
    runs = [
        rank(who, steps=[step(0, 0, end)], phases=[mark(Phase.FORWARD, 0, end)],
             calls=[call(1, launch, ran=(launch, 14), ordinal=0, turn=0, waits=((40, 41),))])
        for who, launch, end in ((0, 10, 50), (1, 12, 45))
    ]  # fmt: skip
    rows = critical_path(ComparedRanks(*analyzed(runs)))
    assert [(row.rank, row.what, row.begin_at_ns, row.end_at_ns) for row in rows] == [(0, "forward", 0, 50)]


def test_without_collectives_there_is_no_path() -> None:
    tables, _ = played(Plan(2, 3))
    assert critical_path(ComparedRanks(tables, ())) == ()
