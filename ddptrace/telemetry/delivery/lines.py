"""Handles each batch of a run that grows: one line makes spans of it, another adds it to the totals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.live.batch import RankBatch
from ddptrace.live.run_follower import RunFollower
from ddptrace.telemetry.delivery.delivery import Delivery
from ddptrace.telemetry.delivery.destination import BATCH_SPANS, points
from ddptrace.telemetry.metrics.metric_data import metrics_data
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_batch
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import trees

LOOK_EVERY_S: Final = 0.5


class Line(Protocol):
    """From a follower to deliveries. Each line has its own follower, so that one that waits for its destination does
    not hold up the other. `made` counts the spans, or the points of the latest numbers, for each delivery."""

    follower: RunFollower
    deliveries: Sequence[Delivery]
    made: int

    def take(self, batch: RankBatch) -> None: ...

    def after_look(self) -> None: ...

    def finish(self) -> None: ...


class SpanLine:
    """Makes spans of each batch."""

    def __init__(self, follower: RunFollower, deliveries: Sequence[Delivery]) -> None:
        self.follower = follower
        self.deliveries = deliveries
        self.made = 0
        self._maker = SpanMaker()
        self._waiting: list[ReadableSpan] = []

    def take(self, batch: RankBatch) -> None:
        for tree in trees(of_batch(batch), batch.steps, strays=batch.is_last):
            spans = self._maker.make(batch.identity, tree)
            self.made += len(spans)
            self._waiting += spans
            while len(self._waiting) >= BATCH_SPANS:
                self._deliver()

    def after_look(self) -> None:
        while self._waiting:
            self._deliver()

    def finish(self) -> None:
        self.after_look()

    def _deliver(self) -> None:
        batch, self._waiting = self._waiting[:BATCH_SPANS], self._waiting[BATCH_SPANS:]
        for delivery in self.deliveries:
            delivery.spans(batch)


class MetricLine:
    """Adds each batch to the totals, and sends them every `every_s` seconds."""

    def __init__(self, follower: RunFollower, deliveries: Sequence[Delivery], totals: Totals, every_s: float) -> None:
        self.follower = follower
        self.deliveries = deliveries
        self.made = 0
        self._totals = totals
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s

    def take(self, batch: RankBatch) -> None:
        self._totals.take(batch)

    def after_look(self) -> None:
        for now in self.follower.now():
            self._totals.of_rank(now.identity)
            self._totals.seen(now.identity.run_id, now.identity.rank, now.worked_unix_ns)
        for (run_id, rank), losses in self.follower.losses().items():
            self._totals.lost(run_id, rank, losses)
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            self._send(last=False)

    def finish(self) -> None:
        self._send(last=True)

    def _send(self, *, last: bool) -> None:
        if self.deliveries:
            data = metrics_data(self._totals, time.time_ns())
            self.made = points(data)
            for delivery in self.deliveries:
                delivery.metrics(data, last=last)


def run_line(
    line: Line, is_over: Callable[[RunFollower], bool], stop: threading.Event, run_id: str | None = None
) -> None:
    """Run a line until the run is over or `stop` is set. `run_id` leaves out other runs in the directory."""
    while True:
        for batch in line.follower.look():
            if run_id in (None, batch.identity.run_id):
                line.take(batch)
        line.after_look()
        if stop.is_set() or is_over(line.follower):
            break
        if not line.follower.is_behind:
            stop.wait(LOOK_EVERY_S)
    line.finish()
    for delivery in line.deliveries:
        delivery.unread_steps = sum(_unread(line.follower, run_id))


def _unread(follower: RunFollower, run_id: str | None) -> Iterator[int]:
    for (of_run, _), losses in follower.losses().items():
        if run_id in (None, of_run):
            yield losses.unread_steps
