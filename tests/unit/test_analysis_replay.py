"""What a rank costs: played again, the run gives its own steps back, and a late rank's cost is what was planted."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.blame import blame_of
from ddptrace.analysis.ranks.crossings import ComparedRanks, Crossings, crossings_of
from ddptrace.analysis.ranks.replay import QUESTIONS, common_steps, costs_of, disorder_ratio, parts_of, step_lengths
from ddptrace.analysis.tables.ranks import BlameRow, MatchRow
from ddptrace.load.tables import RankRun
from ddptrace.schema import Phase
from tests.unit.analysis_records import call, mark, rank, step
from tests.unit.made_training import MS, Plan, Player, analyzed, only, played


def mean_cost(plan: Plan, who: int, question: str) -> float:
    """Over the judged steps, in ns."""
    rows = blame_rows(plan)
    costs = [row.cost_ns for row in rows if (row.rank, row.phase) == (who, question)]
    assert len(costs) == plan.steps - 2
    return float(np.mean(costs))


def blame_rows(plan: Plan) -> tuple[BlameRow, ...]:
    return blame_of(ComparedRanks(*played(plan))).rows


def truth(plan: Plan) -> float:
    """What the steps are longer by than without anybody being late, both played by hand."""
    return Player(plan).step_ns() - Player(replace(plan, late=lambda one, at: {})).step_ns()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_sync", [False, True])
def test_a_run_played_again_as_it_was_gives_its_own_steps_back(seed: int, is_sync: bool) -> None:
    rng = random.Random(seed)
    parts = ("data", "forward", "backward 0", "backward 1", "backward 2", "optimizer", "other")
    times = {(one, at): {part: rng.randint(0, 9 * MS) for part in parts} for one in range(4) for at in range(30)}
    plan = Plan(4, 30, backward=(MS, 0, MS), late=lambda one, at: times[one, at], is_sync=is_sync)
    tables, matches = played(plan)
    trails, crossings = [table.trail for table in tables], crossings_of(tables, matches)
    steps = common_steps(trails)
    measured = np.array([[row.wall_ns for row in table.steps] for table in tables])
    assert steps.tolist() == list(range(30))
    assert [step_lengths(trail, steps).tolist() for trail in trails] == measured.tolist()
    again = costs_of(trails, crossings, steps).step_ns
    assert np.abs(again - measured.mean(axis=0)).max() <= 0.5
    assert disorder_ratio(trails, crossings) == 0


@pytest.mark.parametrize("part", ["data", "forward", "backward 0", "backward 1", "optimizer", "other"])
@pytest.mark.parametrize("is_sync", [False, True])
def test_a_rank_that_is_always_late_costs_what_it_is_late(part: str, is_sync: bool) -> None:
    plan = Plan(2, late=only(1, part, 8 * MS), is_sync=is_sync, other=MS)
    phase = part.split()[0]
    assert truth(plan) == 8 * MS
    # what comes after the last launch is felt in the next step, by the other rank: half of the last one's is not
    felt = 8 * MS * (57.5 / 58 if part in ("optimizer", "other") else 1)
    assert mean_cost(plan, 1, phase) == pytest.approx(felt, rel=1e-6)
    assert mean_cost(plan, 1, "all") == pytest.approx(felt, rel=1e-6)
    for question in set(QUESTIONS) - {phase, "all"}:
        assert mean_cost(plan, 1, question) == 0
    assert abs(mean_cost(plan, 0, phase)) < 0.01 * felt, "were it as late as the other, both would be so together"


def test_a_rank_late_in_some_steps_costs_what_these_are_longer() -> None:
    plan = Plan(2, 62, late=only(1, "backward 1", 8 * MS, lambda at: at // 5 % 2 == 1))
    late = sum(at // 5 % 2 for at in range(2, 62)) / 60
    assert truth(plan) == pytest.approx(8 * MS * late)
    assert mean_cost(plan, 1, "backward") == pytest.approx(8 * MS * late, rel=1e-6)


def test_lateness_before_a_launch_that_the_wire_is_not_free_for_costs_only_what_it_is_more_than_that() -> None:
    # GIVEN a transfer of 10 ms that begins 4 ms before the second launch: it has 6 ms to be late in for nothing
    plan = Plan(2, backward=(4 * MS, 4 * MS), transfer=10 * MS)
    for late, cost in ((5, 0), (6, 0), (9, 3)):
        planted = replace(plan, late=only(1, "backward 1", late * MS))
        assert truth(planted) == cost * MS
        assert mean_cost(planted, 1, "backward") == cost * MS


def test_a_rank_that_is_late_behind_a_later_one_costs_nothing() -> None:
    plan = Plan(3, late=lambda one, at: {"forward": 5 * MS * one})
    assert mean_cost(plan, 1, "forward") == 0
    # rank 2, as late as the others are in half of the steps each: rank 1's 5 ms remain in all of them
    assert mean_cost(plan, 2, "forward") == 5 * MS


def test_of_ranks_that_are_late_in_turn_each_costs_its_own_part() -> None:
    # GIVEN rank 0 late in even steps, rank 1 in odd ones: each in 30 of the 60 judged
    plan = Plan(4, 62, late=lambda one, at: {"data": 6 * MS} if one == at % 2 else {})
    assert truth(plan) == 6 * MS
    for who in (0, 1):
        # of the others' 180 rank-steps 30 are late, so 10 of its own 60 remain: 20 steps are 6 ms shorter
        assert mean_cost(plan, who, "data") == pytest.approx(6 * MS * 20 / 60, rel=1e-6)
    # the two that are never late would be so in 20 of 60, of which half meet a late rank anyway, or more, or less
    for who in (2, 3):
        assert mean_cost(plan, who, "data") == 0


def test_a_step_with_many_launches_is_looked_at_in_a_few_parts_the_same_on_all_ranks() -> None:
    tables, matches = played(Plan(2, 6, backward=(MS,) * 150))
    trails, crossings = [table.trail for table in tables], crossings_of(tables, matches)
    parts = parts_of(trails, crossings, common_steps(trails))
    assert [sorted(set(part.tolist())) for part in parts] == [list(range(51))] * 2, "three launches in each"


def test_where_ranks_do_not_launch_equally_many_a_step_is_one_part() -> None:
    tables, matches = played(Plan(2, 6))
    trails = [table.trail for table in tables]
    parts = parts_of(trails, crossings_of(tables, matches), common_steps(trails))
    assert [part.max() for part in parts] == [2, 2]
    assert [part.max() for part in parts_of(trails, _one_less(tables, matches), common_steps(trails))] == [0, 0]


def _one_less(tables: list[RankTables], matches: tuple[MatchRow, ...]) -> Crossings:
    """Where the first rank's first launch is not known to be one of a matched collective."""
    crossings = crossings_of(tables, matches)
    first, *others = crossings.of_events
    return replace(crossings, of_events=(np.where(np.arange(len(first)) == 1, -1, first), *others))


def test_what_a_rank_costs_is_felt_by_its_own_group_alone() -> None:
    plan = Plan(4, late=only(3, "forward", 8 * MS), groups=((0, 1), (2, 3)))
    assert truth(plan) == 4 * MS, "of the mean over all ranks"
    assert mean_cost(plan, 3, "forward") == 4 * MS
    assert mean_cost(plan, 1, "all") == mean_cost(plan, 0, "all")


def test_ranks_that_meet_nowhere_are_not_blamed() -> None:
    tables, matches = played(Plan(2))
    assert matches
    assert blame_of(ComparedRanks(tables, ())).rows == ()


def test_a_late_root_holds_up_those_it_sends_to_and_a_late_receiver_only_itself() -> None:
    for root, cost in ((0, 8 * MS), (1, 0)):
        tables, matches = analyzed([_broadcasting(one, root) for one in (0, 1)])
        assert {row.op for row in matches} == {"broadcast"}
        costs = costs_of([one.trail for one in tables], crossings_of(tables, matches), np.arange(2, 40))
        late = costs.cost_ns[costs.ranks.index(0), QUESTIONS.index("forward")]
        # rank 0 itself is 8 ms late, and the other with it only where it waits for it: mean of both ranks
        assert late.mean() == 4 * MS + cost / 2


def _broadcasting(one: int, root: int) -> RankRun:
    """Rank 0 takes 18 ms for its forward and rank 1 10 ms; then one sends 2 ms to the other. The root does not wait."""
    now = {0: 0, 1: 0}
    steps, phases, calls = [], [], []
    for at in range(40):
        began = dict(now)
        launches = {0: now[0] + 18 * MS, 1: now[1] + 10 * MS}
        received = max(launches.values()) + 2 * MS
        ends = {who: launches[who] + 2 * MS if who == root else received for who in (0, 1)}
        phases.append(mark(Phase.FORWARD, began[one], launches[one]))
        calls.append(call(
            at + 1, launches[one], op="broadcast", ran=(launches[one], ends[one]), ordinal=at, turn=at,
            waits=((launches[one], ends[one]),), peer=root,
        ))  # fmt: skip
        now = ends
        steps.append(step(at, began[one], now[one]))
    return rank(one, steps=steps, phases=phases, calls=calls)
