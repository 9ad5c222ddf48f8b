"""Ranks of one host joined while their run grows: what analysis says of them afterwards, and nothing where it is not
sure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.clocks.rows import STEPPED_NS
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import PartialStepRow
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.telemetry.metrics.meetings import HostMeetings
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import Meeting, RankRows, StepsAt, of_batch, of_result, whole_calls
from tests.sums import Sums, sums_of, told_by
from tests.unit.made_training import MS, Plan, Player, only

RUN = "5f1e" * 8
ACROSS = ("wait_for_peers", "skew", "last", "lateness")


def tables_of(plan: Plan, **each: Any) -> list[RankTables]:
    return [analyze_rank(replace(run, clock="one", **each)) for run in Player(plan).runs()]


def batch(tables: RankTables, steps: range, *, is_last: bool) -> RankBatch:
    who = Identity(RUN, tables.row.rank, 0, {})
    return RankBatch(who, 0, tables, steps, is_last, Losses(), steps.stop, 1)


def live(tables: Sequence[RankTables], sizes: Sequence[int]) -> Sums:
    """Ranks in turn, each some steps further at a time."""
    totals, at = Totals(), [0] * len(tables)
    count = len(tables[0].steps)
    while min(at) < count:
        for k, table in enumerate(tables):
            steps = range(at[k], min(count, at[k] + sizes[k % len(sizes)]))
            if steps:
                totals.take(batch(table, steps, is_last=steps.stop == count))
            at[k] = steps.stop
    return across(totals)


def across(totals: Totals) -> Sums:
    return wanted(told_by(totals))


def wanted(sums: Sums) -> Sums:
    names = {f"ddptrace.collective.{name}" for name in ACROSS}
    return {key: value for key, value in sums.items() if key[0] in names}


def afterwards(tables: Sequence[RankTables]) -> Sums:
    totals = Totals()
    for rows in of_result(analyzed(tables)):
        totals.add(rows)
    return across(totals)


def analyzed(tables: Sequence[RankTables]) -> Result:
    return combine(RunHead("1.0", RUN, 0, len(tables), ()), tables)


@pytest.mark.parametrize("sizes", [(1,), (60,), (1, 7, 20), (60, 1)])
@pytest.mark.parametrize("groups", [(), ((0, 2), (1, 3))])
def test_live_is_as_afterwards_however_far_the_ranks_are_apart(
    groups: tuple[tuple[int, ...], ...], sizes: Sequence[int]
) -> None:
    tables = tables_of(Plan(ranks=4, groups=groups, late=only(2, "backward 1", 5 * MS)))
    told = live(tables, sizes)
    assert told == afterwards(tables) == wanted(sums_of(analyzed(tables)))
    assert told["ddptrace.collective.last", 2] >= 60
    assert told["ddptrace.collective.lateness", 2] == 60 * 5 * MS / 1e9


def test_a_clock_that_was_set_between_the_starts_is_seen_through_as_analysis_does() -> None:
    tables = tables_of(Plan(ranks=3, late=only(1, "backward 0", 2 * MS)))
    ties = (0, STEPPED_NS - 1, 50 * MS)  # too little to tell, and the wall clock was set
    tables = [moved(table, tie) for table, tie in zip(tables, ties, strict=True)]
    told = live(tables, (3,))
    assert told == afterwards(tables) == wanted(sums_of(analyzed(tables)))
    assert told["ddptrace.collective.last", 1] >= 60


def moved(tables: RankTables, tie_ns: int) -> RankTables:
    """Instants of a rank whose clock was tied to Unix time so much later."""
    calls = tuple(
        replace(
            row, launch_at_ns=row.launch_at_ns + tie_ns, exec_start_at_ns=(row.exec_start_at_ns or 0) + tie_ns,
            exec_end_at_ns=(row.exec_end_at_ns or 0) + tie_ns,
        )
        for row in tables.collectives
    )  # fmt: skip
    steps = tuple(
        replace(row, begin_at_ns=row.begin_at_ns + tie_ns, end_at_ns=row.end_at_ns + tie_ns) for row in tables.steps
    )
    return replace(tables, rows={**tables.rows, "collectives": calls, "steps": steps}, tie_ns=10**15 + tie_ns)


def rows_of(tables: RankTables) -> RankRows:
    return of_batch(batch(tables, range(len(tables.steps)), is_last=True))


def calls_of(rows: RankRows) -> Iterator[tuple[int | None, CollectiveRow]]:
    step_at = StepsAt(rows.steps)
    return ((step_at(row.launch_at_ns), row) for row in whole_calls(rows.collectives))


def met(join: HostMeetings, ranks: Iterable[RankRows]) -> list[tuple[int, Meeting]]:
    return [(one.rank, one.meeting) for rows in ranks for one in join.add(rows, calls_of(rows))]


PLAN = Plan(ranks=2, steps=5)


def two() -> list[RankRows]:
    return [rows_of(tables) for tables in tables_of(PLAN)]


def test_each_rank_of_each_collective_is_told_once() -> None:
    found = met(HostMeetings(), two())
    assert [rank for rank, _ in found] == [0, 1] * 10
    assert {meeting.first_rank for _, meeting in found} == {0}


def test_ranks_with_clocks_of_their_own_are_not_compared() -> None:
    first, second = two()
    assert met(HostMeetings(), [first, replace(second, clock="another")]) == []
    assert met(HostMeetings(), [replace(first, tie_ns=0), replace(second, tie_ns=2 * 10**9)]) == []


def test_a_group_of_which_a_rank_is_elsewhere_is_not_told() -> None:
    assert met(HostMeetings(), [replace(rows, groups={"0": (0, 1, 2)}) for rows in two()]) == []


def test_where_ranks_part_nothing_more_is_told() -> None:
    first, second = two()
    parted = tuple(replace(row, op="barrier") if row.turn == 4 else row for row in second.collectives)
    found = met(HostMeetings(), [first, replace(second, collectives=parted)])
    assert len(found) == 2 * 4


def test_a_rank_of_which_records_are_missing_is_not_compared_any_more() -> None:
    join, (first, second) = HostMeetings(), two()
    assert len(met(join, [until(first, 6), until(second, 6)])) == 2 * 6
    join.distrust(RUN, 1)
    assert met(join, [since(first, 6), since(second, 6)]) == []


def test_totals_of_ranks_that_lost_records_tell_of_no_more_meetings() -> None:
    tables, totals, told = tables_of(PLAN), Totals(), []
    for losses in (Losses(), Losses(torn=1)):
        begin = 0 if not told else 2
        for table in tables:
            steps = range(begin, begin + 2)
            totals.take(replace(batch(table, steps, is_last=False), losses=losses))
        told.append(across(totals)["ddptrace.collective.last", 1])
    assert told == [0, 0]
    assert across(totals)["ddptrace.collective.last", 0] == 2 * 2  # of equal ones, the lowest; and of two steps alone


def test_where_steps_were_left_out_calls_of_different_steps_are_not_taken_for_one() -> None:
    first, second = two()
    later = tuple(replace(row, step=row.step + 1) for row in second.steps)
    assert len(met(HostMeetings(), [first, replace(second, steps=later)])) == 20  # ordinals alone say nothing
    sampled = replace(second, steps=later, partial_steps=(PartialStepRow(1, 0, 0, 1, 1, "optimizer"),))
    assert met(HostMeetings(), [first, sampled]) == []


def test_arrivals_that_wait_for_others_are_bounded_and_the_oldest_go() -> None:
    # GIVEN ranks that met, and one that is then read far ahead of the other
    join, (first, second) = HostMeetings(most=4), two()
    assert len(met(join, [until(first, 2), until(second, 2)])) == 2 * 2
    assert met(join, [since(first, 2)]) == []
    assert [turn for _, turn in join._awaited] == [6, 7, 8, 9]
    # WHEN that one follows
    told = met(join, [since(second, 2)])
    # THEN the last ones meet, and none of what was given up is waited for
    assert len(told) == 2 * 4
    assert not join._awaited


def test_a_group_whose_ranks_never_meet_is_given_up_as_a_whole() -> None:
    join, first = HostMeetings(most=4), replace(two()[0], groups={"0": (0, 9)})
    assert met(join, [first]) == []
    assert not join._awaited


def until(rows: RankRows, calls: int) -> RankRows:
    return replace(rows, collectives=rows.collectives[:calls])


def since(rows: RankRows, calls: int) -> RankRows:
    return replace(rows, collectives=rows.collectives[calls:])


def test_collectives_that_not_all_ranks_end_together_are_not_told() -> None:
    rooted = [
        replace(rows, collectives=tuple(replace(row, op="broadcast") for row in rows.collectives)) for rows in two()
    ]
    assert met(HostMeetings(), rooted) == []
