"""A run that grows, exported while it does."""

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
    """Spans and metrics by threads of their own, so that what is stuck with one does not hold up the other.

    `path` need not be there yet. Each thread has `patience` of its own. `run_id`: only this run of those in it.
    `error`: what ended a thread before its time.
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
            spans = [Delivery(one, "spans", patience.anew(), say) for one in targets.spans]
            self.lines.append(SpanLine(RunFollower(path, host=host), spans))
        if targets.has_metrics:
            numbers = [Delivery(one, "metric points", patience.anew(), say) for one in targets.metrics]
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
        """Whether it is done by then."""
        until = time.monotonic() + for_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return self.is_done()

    def give_up(self) -> None:
        """Count as lost what is made and not settled; for who does not wait for the threads any longer."""
        for line in self.lines:
            for one in line.deliveries:
                one.lost += max(0, line.made - one.sent - one.refused - one.lost)

    def has_removed(self, run_id: str) -> bool:
        """Whether a rank's folder went away before all of it was read."""
        every = (now for line in self.lines for now in line.follower.now())
        return any(now.removed for now in every if now.identity.run_id == run_id)


@contextlib.contextmanager
def scraped(totals: Totals, address: tuple[str, int] | None) -> Iterator[str | None]:
    """Serve the totals to Prometheus; the address. Raises DdptraceError where it cannot be."""
    if address is None:
        yield None
        return
    with extra():
        from ddptrace.telemetry.metrics.prometheus import serve
    host, port = address
    with serve(totals, port, address=host) as server:
        yield server.url


class RunEnded:
    """Whether nobody writes the run any more, asked without reading its records: who waits for a destination does not
    read. False while there is no run yet."""

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
        found = [(one.folder, read_json(one.folder / META) or {}) for one in rank_folders(self._path)]
        mine = [(folder, meta) for folder, meta in found if self._host in (None, meta.get("host"))]
        return bool(mine) and all(_is_left(folder, process_of(meta, time.time_ns()).runs) for folder, meta in mine)


def _is_left(folder: Path, runs: bool | None) -> bool:
    """A process that cannot be asked is judged by what it writes."""
    if runs is not None:
        return not runs
    newest = max((made_unix_ns(file) for file in folder.iterdir()), default=0)
    return time.time_ns() - newest > LEFT_NS
