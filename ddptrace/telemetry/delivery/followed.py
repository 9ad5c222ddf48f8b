"""Exports a run while it grows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ddptrace.live.endings import LEFT_NS, made_unix_ns
from ddptrace.live.run_folders import rank_folders
from ddptrace.live.run_follower import RunFollower
from ddptrace.load.alive import process_of
from ddptrace.record.directory import read_json
from ddptrace.schema import META
from ddptrace.telemetry.delivery.delivery import Delivery, Patience, Say
from ddptrace.telemetry.delivery.lines import Line, MetricLine, SpanLine, run_line
from ddptrace.telemetry.delivery.targets import Targets
from ddptrace.telemetry.environment import METRICS_EVERY_S
from ddptrace.telemetry.extra import extra
from ddptrace.telemetry.metrics.totals import Totals

ASK_EVERY_S: Final = 2.0


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
            run_line(line, is_over, stop, self._run_id)
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
def scraped(totals: Totals, address: tuple[str, int] | None) -> Iterator[str | None]:
    """Serve the totals to Prometheus and yield the URL, or None without an address.

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
        yield server.url


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
