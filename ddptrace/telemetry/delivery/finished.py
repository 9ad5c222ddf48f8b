"""A run that is over, exported from its whole analysis: collectives carry what all their ranks tell together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Identity
from ddptrace.live.identity import read_identity
from ddptrace.live.run_folders import rank_folders
from ddptrace.telemetry.delivery.delivery import Delivery
from ddptrace.telemetry.delivery.destination import BATCH_SPANS
from ddptrace.telemetry.delivery.made_spans import SpanMaker
from ddptrace.telemetry.metric_data import metrics_data
from ddptrace.telemetry.parents import parent_of
from ddptrace.telemetry.rows import of_result
from ddptrace.telemetry.totals import Totals
from ddptrace.telemetry.trees import trees


def identities(result: Result, path: Path) -> Mapping[int, Identity]:
    """By rank. `result`: what `ddptrace.analyze(path)` said; ranks that left no folder are known by their rows."""
    rows = {row.rank: Identity(result.run_id, row.rank, 0, {"host": row.host, "pid": row.pid}) for row in result.ranks}
    found = (read_identity(one.folder, final=True) for one in rank_folders(path) if one.rank is not None)
    own = {one.rank: one for one in found if one is not None and one.run_id == result.run_id}
    return {rank: own.get(rank, told) for rank, told in rows.items()}


def of_host(result: Result, host: str) -> Result:
    """Without the ranks of other hosts; what they told of the others stays."""
    here = {row.rank for row in result.ranks if row.host == host}
    return replace(result, ranks=type(result.ranks)(result.ranks.row_type, [r for r in result.ranks if r.rank in here]))


def export_spans(result: Result, who: Mapping[int, Identity], deliveries: Sequence[Delivery]) -> None:
    for batch in _batches(result, who):
        for delivery in deliveries:
            delivery.spans(batch)


def export_metrics(totals: Totals, deliveries: Sequence[Delivery]) -> None:
    data = metrics_data(totals, time.time_ns())
    for delivery in deliveries:
        delivery.metrics(data, last=True)


def _batches(result: Result, who: Mapping[int, Identity]) -> Iterator[list[ReadableSpan]]:
    maker, waiting = SpanMaker(), list[ReadableSpan]()
    parents = {rank: parent_of(one.meta) for rank, one in who.items()}
    for rows in of_result(result, parents):
        for tree in trees(rows) if rows.rank in who else ():
            waiting += maker.make(who[rows.rank], tree)
            while len(waiting) >= BATCH_SPANS:
                yield waiting[:BATCH_SPANS]
                waiting = waiting[BATCH_SPANS:]
    if waiting:
        yield waiting
