"""Totals of ranks: every step once, collectives with the step that launched them, and a bounded number of points."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.live.rank_follower import RankFollower
from ddptrace.live.run_folders import read_identity
from ddptrace.load.run import read_run
from ddptrace.schema import Kind
from ddptrace.telemetry.delivery.exports import totals_of
from ddptrace.telemetry.metrics.instruments import (
    BUCKETS_MAX,
    COLLECTIVE_SKEW,
    COLLECTIVES_MAX,
    INSTRUMENTS,
    UNITS_MAX,
)
from ddptrace.telemetry.metrics.meetings import HostMeetings
from ddptrace.telemetry.metrics.rank_totals import Points, Spread
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import RankRows, of_result
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.made import make_result
from tests.sums import Sums, summed, sums_of, told_by
from tests.unit.kept_records import give_way
from tests.unit.telemetry_records import BUCKETS, CALLS, MS, Rank, write_manifest

STEPS = 12
RECORD_TIME = "ddptrace.record.time"


def counted(result: Result) -> Sums:
    totals = Totals()
    for rows in of_result(result):
        totals.add(rows)
    return told_by(totals)


def of(told: Sums, name: str, rank: int = 0) -> dict[Any, Any]:
    """By the metric's own attributes."""
    return {key[2:]: value for key, value in told.items() if key[:2] == (f"ddptrace.{name}", rank)}


def catch_up(rank: Rank, follower: RankFollower, number: int, *, final: bool = False) -> list[RankBatch]:
    identity = read_identity(rank.folder, final=True)
    assert identity is not None and identity.rank == number
    waits, batches = True, []
    while waits:
        waits = follower.read(live=not final)
        while batch := follower.next_batch(identity, final=final and not waits):
            batches.append(batch)
    return batches


def recorded(root: Path, totals: Totals, *, looks: int) -> list[RankBatch]:
    """Two ranks that record in turn, looked at so often. The last collective of each step ends in the next one."""
    ranks = [Rank(root, number) for number in range(2)]
    ranks[1].begin = ranks[0].begin + MS  # all that it does comes so much later
    write_manifest(root)
    followers, batches = [RankFollower(rank.folder) for rank in ranks], []
    for k in range(STEPS):
        for number, rank in enumerate(ranks):
            rank.step(k)
            if k:
                rank.late(k - 1)
            if (k + 1) % (STEPS // looks) == 0:
                batches += catch_up(rank, followers[number], number)
    for number, rank in enumerate(ranks):
        rank.late(STEPS - 1)
        rank.recorder.close()
        batches += catch_up(rank, followers[number], number, final=True)
    for batch in batches:
        totals.take(batch)
    return batches


@pytest.mark.parametrize("looks", [1, 3, STEPS])
def test_looking_often_gives_what_looking_once_at_the_end_gives(tmp_path: Path, looks: int) -> None:
    # GIVEN a run read in so many looks, in batches that hold steps given out before
    totals = Totals()
    batches = recorded(tmp_path, totals, looks=looks)
    assert sum(len(batch.tables.steps) > len(batch.steps) for batch in batches) >= looks - 1
    # THEN all points are those of the whole, which are sums over its tables
    result = analyze_run(read_run(tmp_path))
    told = told_by(totals)
    assert told == {key: value for key, value in told_by(totals_of(result, tmp_path)).items() if key[0] != RECORD_TIME}
    assert summed(told) == sums_of(result)
    # AND every call was counted in the step that launched it, though some ran in two
    assert len(result.collectives) > 2 * STEPS * CALLS
    assert of(told, "collective.calls") == {("all_reduce", "0"): STEPS * CALLS}
    assert of(told, "step.duration")[()][0] == STEPS
    assert sum(count for count, _ in of(told, "bucket.duration").values()) == STEPS * BUCKETS
    assert of(told, "collective.last")[()] + of(told, "collective.last", 1)[()] == STEPS * CALLS


def test_a_batch_that_comes_again_counts_no_more(tmp_path: Path) -> None:
    totals = Totals()
    batches = recorded(tmp_path, totals, looks=3)
    before = told_by(totals)
    for batch in batches:
        totals.take(batch)
    assert told_by(totals) == before


def test_what_is_outside_of_all_steps_counts_once_and_only_when_told_to() -> None:
    result = make_result(ranks=1, steps=2, buckets=1)
    after = dataclasses.replace(result.collectives[-1], step=None, seq=99, launch_at_ns=result.steps[-1].end_at_ns + 5)
    (rows,) = of_result(dataclasses.replace(result, collectives=Table(CollectiveRow, [*result.collectives, after])))
    totals, calls = Totals(), []
    for steps, strays in ((range(1), False), (range(1, 2), True), (range(2, 9), True)):
        totals.add(rows, steps=steps, strays=strays)
        calls.append(sum(of(told_by(totals), "collective.calls").values()))
    assert calls == [2, 5, 5]


def test_sums_of_hand_made_tables_are_exact() -> None:
    result = make_result(ranks=3, steps=5, buckets=4)
    told = counted(result)
    assert summed(told) == sums_of(result)
    assert not [key for key in told if key[0].startswith("ddptrace.collective.wait")]  # nothing was matched: no point


def test_what_was_not_measured_has_no_point() -> None:
    result = make_result(ranks=1, steps=2, buckets=2)
    unknown = dict.fromkeys(("exec_start_at_ns", "exec_end_at_ns", "comm_ns", "hidden_ns", "exposed_charged_ns"))
    buckets = [dataclasses.replace(row, **unknown, nbytes=None) for row in result.buckets]
    steps = [dataclasses.replace(row, wait_ns=None, comm_ns=0, hidden_ns=0) for row in result.steps]
    names = {name for name, *_ in counted(dataclasses.replace(
        result, steps=Table(type(steps[0]), steps), buckets=Table(type(buckets[0]), buckets),
        collectives=Table(CollectiveRow, []),
    ))}  # fmt: skip
    assert names == {
        "ddptrace.step.duration", "ddptrace.phase.time", "ddptrace.breakdown.time", "ddptrace.comm.time",
        "ddptrace.records.dropped", "ddptrace.steps.dropped", "ddptrace.step.last", "ddptrace.run.info",
    }  # fmt: skip


def test_the_number_of_points_is_bounded_and_nothing_is_left_out_of_the_sums() -> None:
    # GIVEN a rank with more buckets, and more pairs of op and group, than are told apart
    result = make_result(ranks=1, steps=2, buckets=2)
    buckets = [
        dataclasses.replace(row, reducer=row.index, index=k) for row in result.buckets for k in range(BUCKETS_MAX)
    ]
    calls = [
        dataclasses.replace(row, seq=1000 * row.seq + k, group=f"group {k}", bucket=None, unit=f"layers.{k}")
        for row in result.collectives
        for k in range(max(COLLECTIVES_MAX, UNITS_MAX) + 9)
    ]
    # WHEN they are counted
    told = counted(dataclasses.replace(
        result, buckets=Table(type(buckets[0]), buckets), collectives=Table(CollectiveRow, calls)
    ))  # fmt: skip
    # THEN the rest are one
    for name, most in (
        ("bucket.hidden.time", BUCKETS_MAX),
        ("collective.calls", COLLECTIVES_MAX),
        ("unit.io", UNITS_MAX),
    ):
        found = of(told, name)
        assert len(found) == most + 1
        assert ("other", "other") in found
    assert sum(of(told, "collective.calls").values()) == len(calls)
    assert sum(count for count, _ in of(told, "bucket.duration").values()) == len(buckets)
    assert len(of(told, "bucket.size")) == BUCKETS_MAX  # of many different ones it would say nothing


def shifted(rows: RankRows, by: int, steps: int, calls: int) -> RankRows:
    """The same steps, so many later."""
    again = by * steps
    return dataclasses.replace(
        rows,
        steps=tuple(dataclasses.replace(row, step=row.step + again) for row in rows.steps),
        phases=tuple(dataclasses.replace(row, step=row.step + again) for row in rows.phases),
        buckets=tuple(dataclasses.replace(row, step=(row.step or 0) + again) for row in rows.buckets),
        collectives=tuple(
            dataclasses.replace(row, seq=row.seq + by * calls, turn=row.seq + by * calls, group_size=2)
            for row in rows.collectives
        ),
    )


def test_memory_does_not_grow_with_the_steps() -> None:
    # GIVEN a rank that goes on for long, in a group of which the other rank is never heard of
    result = make_result(ranks=1, steps=10, buckets=30)
    (rows,) = of_result(result)
    rows = dataclasses.replace(rows, clock="one", groups={"default": (0, 1)})
    totals, sizes = Totals(), []
    totals._meetings = HostMeetings(most=1000)
    tracemalloc.start()
    for by in range(40):
        totals.add(shifted(rows, by, 10, len(rows.collectives)), strays=False)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # THEN it holds no more after 400 steps than after 100, of which each call kept would be 100 bytes at least
    assert sizes[-1] - sizes[9] < 100_000 < 300 * 30 * 100
    assert of(told_by(totals), "step.duration")[()][0] == 400


def test_records_and_steps_that_are_missing_are_told_by_reason_and_never_less() -> None:
    totals = Totals()
    totals.of_rank(Identity("run", 0, 0, {}))
    assert set(of(told_by(totals), "records.dropped").values()) == {0}
    totals.lost("run", 0, Losses(1, 2, 3, 4, 5, 6, ("damaged",)))
    totals.lost("run", 0, Losses(1, 2, 3, 0, 5, 7))  # what was taken for torn was unwritable
    told = told_by(totals)
    assert of(told, "records.dropped") == {
        ("no_room",): 1, ("burst",): 2, ("unwritable",): 3, ("torn",): 4, ("unread",): 7,
    }  # fmt: skip
    assert of(told, "steps.dropped") == {("unread",): 5}


def test_records_that_a_run_dropped_are_told_afterwards_too(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    write_manifest(tmp_path)
    rank.steps(0, 3)
    for _ in range(4):
        rank.recorder.event(Kind.DONE, 0, 0, 1, 1, 2**70)
    rank.recorder.close()
    told = told_by(totals_of(analyze_run(read_run(tmp_path)), tmp_path))
    assert of(told, "records.dropped")["unwritable",] == 4


def test_steps_let_go_before_they_were_read_are_told(tmp_path: Path) -> None:
    rank = Rank(tmp_path, keep=Keep(nbytes=LEAST_NBYTES))
    write_manifest(tmp_path)
    follower, totals = RankFollower(rank.folder), Totals()
    for k in range(0, 9000, 100):
        rank.steps(k, k + 100)
        give_way(rank.recorder)
    rank.recorder.close()
    for batch in catch_up(rank, follower, 0, final=True):
        totals.take(batch)
    told = told_by(totals)
    unread = of(told, "steps.dropped")["unread",]
    assert unread > 0
    assert of(told, "step.duration")[()][0] + unread == 9000
    assert of(told, "step.last")[()] == 8999


def test_a_rank_that_was_started_anew_begins_at_nothing_and_its_former_self_is_no_longer_waited_for() -> None:
    result = make_result(ranks=1, steps=3, buckets=1)
    totals = Totals()
    for attempt in range(2):
        who = Identity(f"run {attempt}", 0, attempt, {})
        (rows,) = of_result(dataclasses.replace(result, run_id=who.run_id))
        totals.of_rank(who)
        totals.seen(who.run_id, 0, 1000 + attempt)
        totals.add(rows)
    former, now = ({one.name for one, _ in rank.points} for rank in totals.snapshot())
    assert now - former == {"ddptrace.record.time"}
    assert [rank.identity.run_id for rank in totals.snapshot()] == ["run 0", "run 1"]


def test_a_value_counts_below_the_bound_that_it_is_and_the_last_have_none() -> None:
    points, bounds = Points(), COLLECTIVE_SKEW.bounds
    for ns in (1, 10_000, 10_001, 20_000, 10**10, 10**10 + 1):
        points.observe(COLLECTIVE_SKEW, ns, ("0",))
    ((_, (point,)),) = points.all()
    assert isinstance(point.value, Spread)
    assert bounds[:2] == (10e-6, 20e-6)
    assert point.value.counts == [2, 2, *[0] * (len(bounds) - 3), 1, 1]
    assert (point.value.least, point.value.most, point.value.count) == (1, 10**10 + 1, 6)


def test_instruments_are_frozen() -> None:
    assert [(one.name, one.kind.value, one.unit, one.attributes) for one in INSTRUMENTS] == [
        ("ddptrace.step.duration", "histogram", "s", ()),
        ("ddptrace.phase.time", "counter", "s", ("ddptrace.phase",)),
        ("ddptrace.breakdown.time", "counter", "s", ("ddptrace.part",)),
        ("ddptrace.comm.time", "counter", "s", ("ddptrace.overlap",)),
        ("ddptrace.comm.overlap_ratio", "gauge", "1", ()),
        ("ddptrace.comm.wait", "counter", "s", ()),
        ("ddptrace.bucket.duration", "histogram", "s", ("ddptrace.bucket.reducer", "ddptrace.bucket.index")),
        ("ddptrace.bucket.exposed.time", "counter", "s", ("ddptrace.bucket.reducer", "ddptrace.bucket.index")),
        ("ddptrace.bucket.hidden.time", "counter", "s", ("ddptrace.bucket.reducer", "ddptrace.bucket.index")),
        ("ddptrace.bucket.size", "gauge", "By", ("ddptrace.bucket.reducer", "ddptrace.bucket.index")),
        ("ddptrace.unit.exposed.time", "counter", "s", ("ddptrace.unit.name", "ddptrace.unit.role")),
        ("ddptrace.unit.hidden.time", "counter", "s", ("ddptrace.unit.name", "ddptrace.unit.role")),
        ("ddptrace.unit.io", "counter", "By", ("ddptrace.unit.name", "ddptrace.unit.role")),
        ("ddptrace.dimension.exposed.time", "counter", "s", ("ddptrace.unit.dimension",)),
        ("ddptrace.collective.calls", "counter", "{call}", ("ddptrace.collective.op", "ddptrace.collective.group")),
        ("ddptrace.collective.io", "counter", "By", ("ddptrace.collective.op", "ddptrace.collective.group")),
        ("ddptrace.collective.time", "counter", "s", ("ddptrace.collective.op", "ddptrace.collective.group")),
        ("ddptrace.collective.bus_bandwidth", "histogram", "By/s",
         ("ddptrace.collective.op", "ddptrace.collective.group")),
        ("ddptrace.collective.wait_for_peers", "counter", "s", ()),
        ("ddptrace.collective.skew", "histogram", "s", ("ddptrace.collective.group",)),
        ("ddptrace.collective.last", "counter", "{collective}", ()),
        ("ddptrace.collective.lateness", "counter", "s", ()),
        ("ddptrace.records.dropped", "counter", "{record}", ("ddptrace.reason",)),
        ("ddptrace.steps.dropped", "counter", "{step}", ("ddptrace.reason",)),
        ("ddptrace.step.last", "gauge", "{step}", ()),
        ("ddptrace.record.time", "gauge", "s", ()),
        ("ddptrace.run.info", "gauge", "{run}",
         ("ddptrace.world_size", "ddptrace.backend", "ddptrace.torch.version", "host.name",
          "ddptrace.run.name", "ddptrace.job.id")),
    ]  # fmt: skip
