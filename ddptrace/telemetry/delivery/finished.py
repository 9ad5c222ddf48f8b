"""Exports a finished run from its whole analysis, so that collectives carry what all their ranks know together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Identity, Losses, LossTally
from ddptrace.live.run_folders import rank_folders, read_identity
from ddptrace.load.diagnosis.rank_state import BESIDE
from ddptrace.load.records import described
from ddptrace.load.records.events import FAR_NS, Clock
from ddptrace.record import RecordReader, Records
from ddptrace.schema import Kind
from ddptrace.telemetry.delivery.delivery import BATCH_SPANS, Delivery
from ddptrace.telemetry.metrics.metric_data import metrics_data
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_result, parent_of
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import trees

SEGMENTS_PER_READ: Final = 2


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
    totals, backends = Totals(), {}
    for identity, folder in _identities(path, result):
        recorded = _Recorded(folder)
        totals.of_rank(identity)
        totals.lost(identity.run_id, identity.rank, recorded.losses)
        totals.seen(identity.run_id, identity.rank, recorded.worked_unix_ns)
        backends[identity.rank] = recorded.backends
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


class _Recorded:
    """What a rank's records hold besides the tables. Reads a few files at a time, so that a long run takes little
    memory."""

    def __init__(self, folder: Path) -> None:
        self.worked_unix_ns = 0
        self.backends: tuple[str, ...] = ()
        self._tally = LossTally()
        self._clock: Clock | None = None
        reader, waits = RecordReader(folder), True
        while waits:
            fresh = reader.read(segments=SEGMENTS_PER_READ)
            waits = fresh.behind
            self._take(fresh)

    @property
    def losses(self) -> Losses:
        return self._tally.losses(unread_steps=0)

    def _take(self, fresh: Records) -> None:
        self._tally.add(fresh)
        if self._clock is None or self._clock.tie_ns is None:
            self._clock = Clock.of(fresh.events, None)
        if self._clock.tie_ns is not None:
            self._see_work(fresh, self._clock.monotonic[0], self._clock.tie_ns)
        self._see_groups(fresh)

    def _see_work(self, fresh: Records, start: int, tie_ns: int) -> None:
        near = fresh.events[np.abs(fresh.events["begin"] - start) < FAR_NS]
        worked = near[~np.isin(near["kind"], BESIDE)]
        ends = np.maximum(worked["begin"], worked["end"])
        self.worked_unix_ns = max(self.worked_unix_ns, int(ends.max(initial=-tie_ns)) + tie_ns)

    def _see_groups(self, fresh: Records) -> None:
        names = fresh.events["name"][fresh.events["kind"] == Kind.GROUP].tolist()
        named = described.groups(_contents(fresh.strings.get(name, "") for name in names))
        self.backends = tuple(sorted({*self.backends, *(group.backend for group in named if group.backend)}))


def _contents(texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON texts, without those that were lost."""
    for text in texts:
        with suppress(ValueError, RecursionError):
            content = json.loads(text)
            if isinstance(content, dict):
                yield content
