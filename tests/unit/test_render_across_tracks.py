"""What the merged trace holds beside each rank's own tracks, event by event."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow, PathRow
from ddptrace.analysis.tables.table import Table
from ddptrace.render.trace.chrome import places
from ddptrace.render.trace.tracks import add_matches, by_rank
from tests.made import make_result
from tests.unit.made_device import moved
from tests.unit.made_meetings import TRANSFER_NS, met_result
from tests.unit.test_render_chrome import check_valid, written

Event = dict[str, Any]


def slices(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def loose(result: Result, cut: dict[int, int]) -> Result:
    """The same without buckets; the calls of rank 0 in two parts, cut at an instant by seq."""
    calls: list[CollectiveRow] = []
    for row in (dataclasses.replace(row, bucket=None) for row in result.collectives):
        if row.rank == 0 and row.seq in cut:
            calls.append(dataclasses.replace(row, exec_end_at_ns=cut[row.seq]))
            row = dataclasses.replace(row, exec_start_at_ns=cut[row.seq], part=1)
        calls.append(row)
    matches = [dataclasses.replace(row, bucket=None) for row in result.matches]
    return dataclasses.replace(
        result, buckets=Table(BucketRow), collectives=Table(CollectiveRow, calls), matches=Table(MatchRow, matches)
    )


def waiting_of_rank_0(result: Result) -> tuple[int, int]:
    """A collective in which it waits for long: its seq, and when the last rank arrived."""
    row = max((row for row in result.arrivals if row.rank == 0), key=lambda row: row.wait_ns or 0)
    assert (row.wait_ns or 0) > 1000
    return row.seq, result.matches[row.match].last_arrival_at_ns or 0


@pytest.mark.parametrize("after_ns", [-500, 0, 500])
def test_a_collective_that_crosses_the_end_of_a_step_has_one_arrow(tmp_path: Path, after_ns: int) -> None:
    # GIVEN one that is cut in two before, when or after the last rank arrived
    result = met_result(2, 4, 2)
    seq, last_at = waiting_of_rank_0(result)
    _, events = written(loose(result, {seq: last_at + after_ns}), tmp_path)
    check_valid(events)
    # THEN there is an arrow per match, and where the transfer begins does not change
    arrows = [event for event in events if event["ph"] == "f" and event["name"] == "last arrival"]
    assert len(arrows) == len(result.matches)
    assert last_at in {event["ts"] for event in arrows}
    waits = [event for event in slices(events, "peer.wait") if event["ts"] + event["dur"] == last_at]
    assert waits


def test_an_arrow_that_has_no_transfer_to_end_at_does_not_start(tmp_path: Path) -> None:
    result = met_result(3, 2, 1)
    arrivals = [
        dataclasses.replace(row, wait_ns=(row.wait_ns or 0) + TRANSFER_NS, transfer_ns=0) if row.rank == 0 else row
        for row in result.arrivals
    ]
    _, events = written(dataclasses.replace(result, arrivals=Table(ArrivalRow, arrivals)), tmp_path)
    check_valid(events)


def test_an_arrow_starts_when_the_last_but_one_had_come(tmp_path: Path) -> None:
    result = met_result(3, 3, 2)
    _, events = written(result, tmp_path)
    drawn = sorted((event["pid"] - 1, event["ts"], event["dur"]) for event in slices(events, "arrival"))
    assert drawn == sorted(
        (match.last_rank or 0, (match.last_arrival_at_ns or 0) - (match.blame_ns or 0), match.blame_ns)
        for match in result.matches
    )
    starts = [event for event in events if event["ph"] == "s" and event["name"] == "last arrival"]
    assert len(starts) == 2 * len(result.matches)


def test_ranks_that_come_last_together_are_last_by_a_nanosecond(tmp_path: Path) -> None:
    """Else an arrow would begin and end at one instant, and which of both is read first is up to chance."""
    result = met_result(2, 2, 1)
    matches = [dataclasses.replace(row, blame_ns=0) for row in result.matches]
    _, events = written(dataclasses.replace(result, matches=Table(MatchRow, matches)), tmp_path)
    assert {event["dur"] for event in slices(events, "arrival")} == {1}


def test_an_execution_without_waiting_that_no_arrow_ends_at_has_nothing_inside(tmp_path: Path) -> None:
    result = met_result(2, 3, 1)
    _, events = written(result, tmp_path)
    assert len(slices(events, "peer.transfer")) == len(result.matches)  # of the rank that waited
    assert {event["dur"] for event in slices(events, "peer.transfer")} == {TRANSFER_NS}


def test_a_run_whose_ranks_never_met_is_drawn_as_ever(tmp_path: Path) -> None:
    _, events = written(make_result(2, 2, 2), tmp_path)
    assert not {"arrival", "peer.wait", "peer.transfer", "path"} & {event.get("cat") for event in events}
    assert {event["name"] for event in events if event["ph"] in "sf"} == {"launch"}


def test_no_path_is_drawn_over_ranks_that_share_no_time(tmp_path: Path) -> None:
    result = dataclasses.replace(met_result(2, 2, 1), arrivals=Table(ArrivalRow))
    first, *rest = result.critical_path
    both = dataclasses.replace(result, critical_path=Table(PathRow, [first, *(
        dataclasses.replace(row, rank=1) for row in rest
    )]))  # fmt: skip
    _, events = written(both, tmp_path)
    assert slices(events, "path")
    _, events = written(moved(both, 1, 40 * 365 * 86_400 * 10**9), tmp_path)
    assert not slices(events, "path")


def test_hosts_stand_in_the_order_of_their_lowest_ranks() -> None:
    result = make_result(6, 1, 1)
    hosts = ["b", "a", "b", "c", "a", ""]
    ranks = [dataclasses.replace(row, host=hosts[row.rank]) for row in result.ranks]
    found = places(by_rank(dataclasses.replace(result, ranks=Table(type(ranks[0]), ranks))))
    assert sorted(found, key=lambda rank: found[rank]) == [0, 2, 1, 4, 3, 5]


def test_numbers_of_arrows_are_used_once(tmp_path: Path) -> None:
    result = met_result(4, 3, 2)
    ranks = by_rank(result)
    add_matches(result, ranks, itertools.count(10))
    numbers = sorted(met.arrow for rows in ranks for met in rows.met.values() if met.arrow)
    assert numbers == list(range(10, 10 + 3 * len(result.matches)))
    started = sorted(
        arrow for rows in ranks for last in rows.last for arrow in range(last.arrow, last.arrow + last.arrows)
    )
    assert started == numbers
