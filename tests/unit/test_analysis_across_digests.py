"""The ranks together, in short: who came last, who waited, what the path is made of. Counted by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean, median

import pytest

from ddptrace.analysis.ranks.digest import match_digests, path_shares
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow, PathRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from tests.made import empty_result
from tests.unit.made_meetings import FREE_TRANSFER_NS, TRANSFER_NS, met_result, played_result
from tests.unit.made_training import MS, Plan, only


def typical(result: Result) -> set[int]:
    return {row.step for row in measured_steps(result.steps)[0]}


def test_each_bucket_has_its_skew_its_wait_and_who_came_last() -> None:
    result = met_result(4, 8, 3)
    found = match_digests(result)
    steps = typical(result)
    assert (found.steps, found.count, found.timed, found.agree) == (
        len(steps),
        3 * len(steps),
        3 * len(steps),
        3 * len(steps),
    )
    assert sorted(one.bucket or () for one in found.kinds) == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]
    for one in found.kinds:
        rows = [row for row in result.matches if row.bucket == one.bucket and row.step in steps]
        waits = [row.wait_ns or 0 for row in result.arrivals if row.match in {match.match for match in rows}]
        skews = sorted(row.skew_ns or 0 for row in rows)
        assert (one.skew_ns, one.skew_p95_ns) == (round(median(skews)), skews[-1])
        assert (one.wait_ns, one.transfer_ns, one.free_transfer_ns) == (
            round(fmean(waits)), TRANSFER_NS, FREE_TRANSFER_NS,
        )  # fmt: skip
        [(rank, times), *_] = Counter(row.last_rank for row in rows).most_common()
        assert one.latest is not None
        assert one.latest.last == times
        assert Counter(row.last_rank for row in rows)[one.latest.rank] == times
        assert rank is not None


def test_a_rank_that_is_late_is_last_in_all_and_never_waits() -> None:
    # two transfers of 3 ms a step; rank 1 launches the first 8 ms after the others, and the second one queues
    result = played_result(Plan(3, 12, late=only(1, "forward", 8 * MS)), ["a"] * 3)
    found = match_digests(result)
    lags = {one.lag.rank: one.lag for one in found.ranks}
    assert (lags[1].last_ratio, lags[1].blame_ns) == (1.0, 8 * MS)
    assert lags[0].last == lags[2].last == 0
    waits = {one.lag.rank: one.waits_ns for one in found.ranks}
    assert waits[1] == 0
    assert waits[0] == waits[2] == sum(
        row.wait_ns or 0 for row in result.arrivals if row.rank == 0 and row.step == 5
    ) >= 8 * MS  # fmt: skip


def test_the_share_that_waits_is_of_all_executions() -> None:
    result = met_result(2, 6, 2)
    steps = typical(result)
    waits = sum(row.wait_ns or 0 for row in result.arrivals if row.step in steps)
    whole = waits + TRANSFER_NS * sum(row.step in steps for row in result.arrivals)
    assert match_digests(result).wait_ratio == pytest.approx(waits / whole)


def test_where_no_clock_tells_lengths_do() -> None:
    result = met_result(2, 6, 2)
    blind = [replace(row, wait_ns=None, transfer_ns=None, free_wait_ns=7) for row in result.arrivals]
    matches = [replace(row, last_rank=None, skew_ns=None, agrees=None) for row in result.matches]
    found = match_digests(replace(result, arrivals=Table(ArrivalRow, blind), matches=Table(MatchRow, matches)))
    assert all(one.free for one in found.ranks)
    assert {one.waits_ns for one in found.ranks} == {14}
    assert found.timed == 0
    assert all((one.skew_ns, one.wait_ns, one.free_wait_ns, one.latest) == (None, None, 7, None) for one in found.kinds)
    assert not any(one.free for one in match_digests(result).ranks)


def test_without_steps_all_matches_are_told() -> None:
    result = replace(met_result(2, 4, 2), steps=Table(StepRow))
    found = match_digests(result)
    assert (found.steps, found.count) == (0, 8)


def test_the_parts_of_the_path_add_up_to_the_typical_steps() -> None:
    result = met_result(2, 8, 2)
    steps = typical(result)
    shares = path_shares(result)
    lengths = {(row.rank, row.step): row.wall_ns for row in result.steps}
    assert sum(share.ratio for share in shares) == pytest.approx(1)
    assert sum(share.ns for share in shares) == pytest.approx(fmean(lengths[0, step] for step in steps), abs=9)
    assert [share.ns for share in shares] == sorted((share.ns for share in shares), reverse=True)
    [transfer] = [share for share in shares if share.rank is None]
    assert (transfer.what, transfer.bucket) == ("allreduce_", (0, 1, 0))
    backward = next(share for share in shares if share.what == "backward")
    assert transfer.ns == pytest.approx(backward.ns, abs=2)


def test_a_path_outside_the_typical_steps_is_told_whole() -> None:
    result = met_result(2, 8, 2)
    loose = [replace(row, step=None) for row in result.critical_path]
    assert sum(
        share.ratio for share in path_shares(replace(result, critical_path=Table(PathRow, loose)))
    ) == pytest.approx(1)
    assert path_shares(empty_result()) == []
