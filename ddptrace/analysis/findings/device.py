"""What profiler windows of a device show, and what their numbers leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import Population, RankRow
from ddptrace.findings import BUCKETS_BY_ORDER, LAUNCH_BOUND, OUTSIDE_WINDOW, WITHOUT_LAUNCH, Finding
from ddptrace.units import duration, named, percent

UNKNOWN: Final = "not known"


def device_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    yield from _without_launch(result)
    yield from _outside(ranks)
    yield from _by_order(result)
    yield from _launch_bound(result)


def _without_launch(result: Result) -> Iterator[Finding]:
    rows = [row for row in result.ranks if row.gpu_events and row.gpu_events_with_launch != row.gpu_events]
    if rows:
        events = sum(row.gpu_events or 0 for row in rows)
        without = events - sum(row.gpu_events_with_launch or 0 for row in rows)
        yield WITHOUT_LAUNCH(
            _of(rows),
            f"{without} of {events} device events ({percent(without / events)}) on {_of(rows)} have no launch in the"
            f" file: most were queued before the window. {_overlaps(rows)}Work without a launch is assigned to steps by"
            " its time.",
        )


def _overlaps(rows: Sequence[RankRow]) -> str:
    every, launched = _overlap([row.all for row in rows]), _overlap([row.with_launch for row in rows])
    return f"Overlap is {every} of all work, and {launched} of the work with a launch. " if every != UNKNOWN else ""


def _of(rows: Sequence[RankRow]) -> str:
    return named("rank", [row.rank for row in rows])


def _overlap(populations: Sequence[Population | None]) -> str:
    known = [population for population in populations if population is not None]
    comm = sum(population.comm_ns for population in known)
    return percent(sum(population.hidden_ns for population in known) / comm) if comm else UNKNOWN


def _outside(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    strays = [rank for rank in ranks if rank.outside_ns]
    if strays:
        where = named("rank", [rank.rank for rank in strays])
        ns = sum(rank.outside_ns for rank in strays)
        yield OUTSIDE_WINDOW(
            where,
            f"{duration(ns)} ({ns} ns) of device work on {where} are outside the windows of all steps (queued before"
            " the first step or launched after the last): no step counts them; the tables of ranks, streams and scopes"
            " do.",
        )


def _by_order(result: Result) -> Iterator[Finding]:
    rows = [row for row in result.buckets if row.identity == "order"]
    if rows:
        where = named("rank", sorted({row.rank for row in rows}))
        changes = max(row.layout for row in rows)
        often = "once" if changes == 1 else f"{changes} times"
        several = f" Their sizes changed {often}: compare only buckets of the same layout." if changes else ""
        yield BUCKETS_BY_ORDER(
            where,
            f"DDP's buckets on {where} were not recorded: they are the all-reduces of each backward, numbered by"
            f" launch, without names of parameters.{several} Trace with ddptrace.trace() to see which parameters a"
            " bucket holds and when they were ready.",
        )


def _launch_bound(result: Result) -> Iterator[Finding]:
    bound = [row for row in result.launches if row.launch_bound]
    if bound:
        where = named("rank", sorted({row.rank for row in bound}))
        idle_ns, window_ns = sum(row.host_idle_ns for row in bound), sum(row.window_ns for row in bound)
        yield LAUNCH_BOUND(
            where,
            f"In {len(bound)} of {len(result.launches)} steps on {where} the device had no work and an empty queue for"
            f" more than {percent(LAUNCH_BOUND_RATIO)} of the step, on average {percent(idle_ns / window_ns)}"
            f" ({duration(idle_ns / len(bound))} a step): the host launches too slowly. Look for what delays it"
            " (.item(), printing, data loading), and give it less to launch: torch.compile, CUDA graphs, fused"
            " optimizers, larger batches.",
        )
