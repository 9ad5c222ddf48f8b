"""Exports a finished run from its whole analysis, so that collectives carry what all their ranks know together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Identity, losses_of
from ddptrace.live.run_folders import rank_folders, read_identity
from ddptrace.telemetry.delivery.delivery import BATCH_SPANS, Delivery
from ddptrace.telemetry.metrics.metric_data import metrics_data
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_result, parent_of
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import trees


def identities(result: Result, path: Path) -> Mapping[int, Identity]:
    """Return who each rank is. `result` comes from `ddptrace.analyze(path)`; ranks without a folder are known by their
    rows only."""
    rows = {row.rank: Identity(result.run_id, row.rank, 0, {"host": row.host, "pid": row.pid}) for row in result.ranks}
    own = {identity.rank: identity for identity, _ in _identities(path, result)}
    return {rank: own.get(rank, by_row) for rank, by_row in rows.items()}


def of_host(result: Result, host: str) -> Result:
    """Return the result without the ranks of other hosts. What those ranks showed about the others stays."""
    here = {row.rank for row in result.ranks if row.host == host}
    return replace(result, ranks=type(result.ranks)(result.ranks.row_type, [r for r in result.ranks if r.rank in here]))


def export_spans(result: Result, who: Mapping[int, Identity], deliveries: Sequence[Delivery]) -> None:
    """Deliver the spans of the ranks in `who`, batch by batch."""
    for batch in _batches(result, who):
        for delivery in deliveries:
            delivery.spans(batch)


def export_metrics(totals: Totals, deliveries: Sequence[Delivery]) -> None:
    """Deliver the totals once."""
    data = metrics_data(totals, time.time_ns())
    for delivery in deliveries:
        delivery.metrics(data, last=True)


def _batches(result: Result, who: Mapping[int, Identity]) -> Iterator[list[ReadableSpan]]:
    maker, waiting = SpanMaker(), list[ReadableSpan]()
    parents = {rank: parent_of(identity.meta) for rank, identity in who.items()}
    for rows in of_result(result, parents):
        for tree in trees(rows) if rows.rank in who else ():
            waiting += maker.make(who[rows.rank], tree)
            while len(waiting) >= BATCH_SPANS:
                yield waiting[:BATCH_SPANS]
                waiting = waiting[BATCH_SPANS:]
    if waiting:
        yield waiting


def totals_of(result: Result, path: Path) -> Totals:
    """Return the totals of a result of `ddptrace.analyze(path)`. Ranks on all hosts and profiler windows are included;
    ranks without a folder have the numbers of their rows only."""
    totals, recordings = Totals(), {one.rank: one for one in result.recordings}
    identities = [identity for identity, _ in _identities(path, result) if identity.rank in recordings]
    for identity in identities:
        one = recordings[identity.rank]
        totals.of_rank(identity)
        totals.lost(
            identity.run_id,
            identity.rank,
            losses_of(one.dropped, one.dropped_without_room, one.dropped_in_bursts, one.torn, one.damaged),
        )
        totals.seen(identity.run_id, identity.rank, one.worked_unix_ns)
    backends = {identity.rank: recordings[identity.rank].backends for identity in identities}
    for rows in of_result(result):
        totals.add(replace(rows, backends=backends.get(rows.rank, ())))
    return totals


def _identities(path: Path, result: Result) -> Iterator[tuple[Identity, Path]]:
    """Yield the identities and folders of the analyzed attempt's ranks. A rank that never learned its number is left
    out."""
    wanted = {row.rank for row in result.ranks}
    for found in rank_folders(path):
        identity = read_identity(found.folder, final=True) if found.rank in wanted else None
        if identity is not None and identity.run_id == result.run_id:
            yield identity, found.folder
