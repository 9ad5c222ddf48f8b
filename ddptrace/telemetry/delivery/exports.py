"""Exports a run: while it grows, or finished, from its whole analysis.

Of a run that grows, each batch goes through two lines: one makes spans of it, the other adds it to the totals.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Identity, RankBatch, losses_of
from ddptrace.live.run_folders import LEFT_NS, made_unix_ns, rank_folders, read_identity
from ddptrace.live.run_follower import RunFollower
from ddptrace.load.alive import process_of
from ddptrace.record.directory import read_json
from ddptrace.schema import META
from ddptrace.telemetry.delivery.delivery import BATCH_SPANS, Delivery, Patience, Say, points
from ddptrace.telemetry.delivery.targets import Targets
from ddptrace.telemetry.environment import METRICS_EVERY_S, extra
from ddptrace.telemetry.metrics.totals import Totals, metrics_data
from ddptrace.telemetry.rows import of_batch, of_result, parent_of
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import trees

if TYPE_CHECKING:
    from ddptrace.telemetry.metrics.prometheus import Server

ASK_EVERY_S: Final = 2.0
LOOK_EVERY_S: Final = 0.5


class Following:
    """Exports spans and metrics in two threads, so that one that waits does not hold up the other.

    `path` need not exist yet. Each destination has its own copy of `patience`. `run_id` leaves out other runs in the
    directory. `error` is what ended a thread too early.
    """

    def __init__(
        self,
        path: Path,
        targets: Targets,
        patience: Patience,
        say: Say,
        *,
        host: str | None = None,
        run_id: str | None = None,
        metrics_every_s: float = METRICS_EVERY_S,
    ) -> None:
        self.totals = Totals()
        self.error: Exception | None = None
        self.lines: list[Line] = []
        self._run_id = run_id
        if targets.spans:
            spans = [Delivery(target, "spans", patience.anew(), say) for target in targets.spans]
            self.lines.append(SpanLine(RunFollower(path, host=host), spans))
        if targets.has_metrics:
            numbers = [Delivery(target, "metric points", patience.anew(), say) for target in targets.metrics]
            self.lines.append(MetricLine(RunFollower(path, host=host), numbers, self.totals, metrics_every_s))
        self._threads: list[threading.Thread] = []

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for line in self.lines for delivery in line.deliveries]

    def start(self, is_over: Callable[[RunFollower], bool], stop: threading.Event) -> None:
        for line in self.lines:
            name = f"ddptrace-{type(line).__name__}"
            thread = threading.Thread(target=self._run, args=(line, is_over, stop), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, line: Line, is_over: Callable[[RunFollower], bool], stop: threading.Event) -> None:
        try:
            _run_line(line, is_over, stop, self._run_id)
        except Exception as error:
            self.error = self.error or error

    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self, for_s: float) -> bool:
        """Wait at most `for_s` seconds, and return whether both threads are done."""
        until = time.monotonic() + for_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return self.is_done()

    def give_up(self) -> None:
        """Count as lost what was made and not settled. Call it if you do not wait for the threads any longer."""
        for line in self.lines:
            for delivery in line.deliveries:
                delivery.lost += max(0, line.made - delivery.sent - delivery.refused - delivery.lost)

    def has_removed(self, run_id: str) -> bool:
        """Whether a rank's folder went away before all of it was read."""
        every = (now for line in self.lines for now in line.follower.now())
        return any(now.removed for now in every if now.identity.run_id == run_id)


@contextlib.contextmanager
def scraped(totals: Totals, address: tuple[str, int] | None) -> Iterator[Server | None]:
    """Serve the totals to Prometheus and yield the server, or None without an address.

    Raises:
        DdptraceError: the address or port cannot be used, or a package is missing.
    """
    if address is None:
        yield None
        return
    with extra():
        from ddptrace.telemetry.metrics.prometheus import serve
    host, port = address
    with serve(totals, port, address=host) as server:
        yield server


class RunEnded:
    """Tells whether nobody writes the run any more, without reading its records, since who waits for a destination does
    not read. False before there is a run."""

    def __init__(self, path: Path, host: str | None) -> None:
        self._path = path
        self._host = host
        self._answer = False
        self._next_s = float("-inf")

    def __call__(self) -> bool:
        if time.monotonic() >= self._next_s:
            self._answer = self._ask()
            self._next_s = time.monotonic() + ASK_EVERY_S
        return self._answer

    def _ask(self) -> bool:
        found = [(rank.folder, read_json(rank.folder / META) or {}) for rank in rank_folders(self._path)]
        mine = [(folder, meta) for folder, meta in found if self._host in (None, meta.get("host"))]
        return bool(mine) and all(_is_left(folder, process_of(meta, time.time_ns()).runs) for folder, meta in mine)


def _is_left(folder: Path, runs: bool | None) -> bool:
    """Whether a process is gone. One that cannot be looked up counts as gone if it writes nothing new."""
    if runs is not None:
        return not runs
    newest = max((made_unix_ns(file) for file in folder.iterdir()), default=0)
    return time.time_ns() - newest > LEFT_NS


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


def _run_line(
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


# A finished run -------------------------------------------------------------------------------------------------------


def identities(result: Result, path: Path) -> Mapping[int, Identity]:
    """Return who each rank is. `result` comes from `ddptrace.analyze(path)`; ranks without a folder are known by their
    rows only."""
    rows = {row.rank: Identity(result.run_id, row.rank, 0, {"host": row.host, "pid": row.pid}) for row in result.ranks}
    own = {identity.rank: identity for identity in _analyzed(path, result)}
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
    known = [identity for identity in _analyzed(path, result) if identity.rank in recordings]
    for identity in known:
        one = recordings[identity.rank]
        totals.of_rank(identity)
        totals.lost(
            identity.run_id,
            identity.rank,
            losses_of(one.dropped, one.dropped_without_room, one.dropped_in_bursts, one.torn, one.damaged),
        )
        totals.seen(identity.run_id, identity.rank, one.worked_unix_ns)
    backends = {identity.rank: recordings[identity.rank].backends for identity in known}
    for rows in of_result(result):
        totals.add(replace(rows, backends=backends.get(rows.rank, ())))
    return totals


def _analyzed(path: Path, result: Result) -> Iterator[Identity]:
    """Yield the identities of the analyzed attempt's ranks. A rank that never learned its number is left
    out."""
    wanted = {row.rank for row in result.ranks}
    for found in rank_folders(path):
        identity = read_identity(found.folder, final=True) if found.rank in wanted else None
        if identity is not None and identity.run_id == result.run_id:
            yield identity
