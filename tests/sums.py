"""What metrics have to be: sums over the tables of a run, made as plainly as can be, to hold the real ones against.

A series is (metric, rank, its own attributes), as in `telemetry/metrics/instruments.py`; values are in the metric's
unit, of histograms count and sum.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Instrument, Kind
from ddptrace.telemetry.metrics.rank_totals import Spread
from ddptrace.telemetry.metrics.totals import Totals

Series = tuple[Any, ...]
Sums = dict[Series, Any]

NS = 10**9
OF_THE_MOMENT = ("ddptrace.comm.overlap_ratio", "ddptrace.step.last", "ddptrace.record.time", "ddptrace.run.info")
"""Gauges that are not sums, nor of one row."""


def sums_of(result: Result) -> Sums:
    """All that tables alone tell: all but `OF_THE_MOMENT` and what was dropped."""
    ns: dict[Series, int] = defaultdict(int)
    spreads: dict[Series, list[int]] = defaultdict(list)
    found: Sums = {}
    for table in (_of_steps, _of_buckets, _of_collectives, _of_meetings):
        table(result, ns, spreads, found)
    units = {one.name: one.per_unit for one in INSTRUMENTS}
    found |= {key: value / NS if units[key[0]] == NS else value for key, value in ns.items()}
    found |= {key: (len(all_), sum(all_) / NS if units[key[0]] == NS else sum(all_)) for key, all_ in spreads.items()}
    return found


def _of_steps(result: Result, ns: dict[Series, int], spreads: dict[Series, list[int]], found: Sums) -> None:
    for row in result.steps:
        spreads["ddptrace.step.duration", row.rank].append(row.wall_ns)
        for phase in ("data", "forward", "backward", "optimizer", "other"):
            if getattr(row, f"{phase}_ns") or any(
                (one.rank, one.step, one.phase) == (row.rank, row.step, phase) for one in result.phases
            ):
                ns["ddptrace.phase.time", row.rank, phase] += getattr(row, f"{phase}_ns")
        for part in ("compute", "exposed_comm", "exposed_memory", "idle"):
            ns["ddptrace.breakdown.time", row.rank, part] += getattr(row, f"{part}_ns")
        ns["ddptrace.comm.time", row.rank, "hidden"] += row.hidden_ns
        ns["ddptrace.comm.time", row.rank, "exposed"] += row.comm_ns - row.hidden_ns
        if row.wait_ns is not None:
            ns["ddptrace.comm.wait", row.rank] += row.wait_ns


def _of_buckets(result: Result, ns: dict[Series, int], spreads: dict[Series, list[int]], found: Sums) -> None:
    for row in result.buckets:
        own = row.rank, row.reducer, row.index
        if row.comm_ns is not None and row.hidden_ns is not None and row.exposed_charged_ns is not None:
            spreads["ddptrace.bucket.duration", *own].append(row.comm_ns)
            ns["ddptrace.bucket.hidden.time", *own] += row.hidden_ns
            ns["ddptrace.bucket.exposed.time", *own] += row.exposed_charged_ns
        found["ddptrace.bucket.size", *own] = row.nbytes


def _of_collectives(result: Result, ns: dict[Series, int], spreads: dict[Series, list[int]], found: Sums) -> None:
    for row in result.collectives:
        own = row.rank, row.op, row.group
        if row.part == 0:
            ns["ddptrace.collective.calls", *own] += 1
            ns["ddptrace.collective.io", *own] += row.nbytes or 0
        if row.comm_ns is not None:
            ns["ddptrace.collective.time", *own] += row.comm_ns
        if row.busbw_bytes_per_s is not None:
            spreads["ddptrace.collective.bus_bandwidth", *own].append(round(row.busbw_bytes_per_s))
        if row.dimension is not None and row.exposed_charged_ns is not None:
            ns["ddptrace.dimension.exposed.time", row.rank, row.dimension] += row.exposed_charged_ns
        if row.unit is not None and row.bucket is None:
            unit = row.rank, row.unit, row.unit_role
            ns["ddptrace.unit.exposed.time", *unit] += row.exposed_charged_ns or 0
            ns["ddptrace.unit.hidden.time", *unit] += row.hidden_ns or 0
            ns["ddptrace.unit.io", *unit] += row.nbytes or 0 if row.part == 0 else 0


def _of_meetings(result: Result, ns: dict[Series, int], spreads: dict[Series, list[int]], found: Sums) -> None:
    for arrival in result.arrivals:
        if arrival.wait_ns is not None:
            ns["ddptrace.collective.wait_for_peers", arrival.rank] += arrival.wait_ns
    for match in result.matches:
        if match.last_rank is None or match.skew_ns is None or match.blame_ns is None:
            continue
        for rank in match.ranks:
            ns["ddptrace.collective.last", rank] += rank == match.last_rank
            ns["ddptrace.collective.lateness", rank] += 0
        spreads["ddptrace.collective.skew", min(match.ranks), match.group].append(match.skew_ns)
    for rank in {row.rank for row in result.ranks}:
        if late := [match for match in result.matches if match.last_rank == rank]:
            ns["ddptrace.collective.lateness", rank] = late_ns(late)


def late_ns(matches: list[MatchRow]) -> int:
    """In which all others waited for the last rank of these, each instant once."""
    known = [(one.last_arrival_at_ns or 0, one.blame_ns or 0) for one in matches]
    total, until = 0, 0
    for at, blame in sorted(known):
        total += max(0, at - max(at - blame, until))
        until = at
    return total


def told_by(totals: Totals) -> Sums:
    """Everything that totals hold, in the same form."""
    found: Sums = {}
    for rank in totals.snapshot():
        for instrument, points in rank.points:
            for point in points:
                assert (instrument.kind is Kind.HISTOGRAM) == isinstance(point.value, Spread)
                found[instrument.name, rank.identity.rank, *point.labels] = in_unit(instrument, point.value)
    return found


def in_unit(instrument: Instrument, value: int | float | Spread) -> Any:
    if isinstance(value, Spread):
        assert sum(value.counts) == value.count
        return value.count, in_unit(instrument, value.total)
    return value / instrument.per_unit if instrument.per_unit != 1 else value


def summed(sums: Sums) -> Sums:
    """Those of them that `sums_of` makes."""
    others = (*OF_THE_MOMENT, "ddptrace.records.dropped", "ddptrace.steps.dropped")
    return {key: value for key, value in sums.items() if key[0] not in others}
