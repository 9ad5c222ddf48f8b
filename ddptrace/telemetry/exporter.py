"""The thread that turns this rank's own records into spans while training runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from opentelemetry.trace import TracerProvider

import ddptrace
from ddptrace.errors import TraceStateError
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.live.identity import read_identity
from ddptrace.live.rank_follower import RankFollower
from ddptrace.telemetry.rows import of_batch
from ddptrace.telemetry.spans import Emitter
from ddptrace.telemetry.trees import Tree, trees
from ddptrace.telemetry.warned import warn

PERIOD_S: Final = 2.0
STOP_S: Final = 2.0
"""How long `stop` takes at most, however slow the provider's exporter is."""


class Exporter:
    """Follows the record files of one rank and hands their spans to a provider; knows nothing of torch.

    `folder` is asked at every look, since a rank's folder gets its name once its rank is known. What follows a step is
    waited for before the step's spans are made, and before the first one a few steps more, until it is clear what
    ends a step. Profiler windows are not used: their files come late, and `ddptrace analyze` has them. Where the
    provider is slow, records wait on the disk. A failure is told by one warning and ends the export, never the
    training.
    """

    def __init__(self, folder: Callable[[], Path], provider: TracerProvider) -> None:
        """Raises TraceStateError where `provider` is none."""
        if not callable(getattr(provider, "get_tracer", None)):
            raise TraceStateError(
                f"tracer_provider={provider!r} is no OpenTelemetry TracerProvider; give the one that "
                "opentelemetry.sdk.trace.TracerProvider() makes, or opentelemetry.trace.get_tracer_provider()"
            )
        self._folder = folder
        self._emitter = Emitter(provider, ddptrace.__version__)
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="ddptrace-telemetry", daemon=True)
        self._follower: RankFollower | None = None
        self._identity: Identity | None = None
        self._exported = 0
        self._error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export what is left of the closed record files, for `STOP_S` at most, and say what was not exported."""
        self._deadline = time.monotonic() + 0.9 * STOP_S  # the thread gives up a little earlier than we do
        self._stopping.set()
        self._thread.join(STOP_S)
        message = self._complaint()
        if message is not None:
            warn(message, stacklevel=3)

    def _complaint(self) -> str | None:
        if self._thread.is_alive():
            return (
                f"ddptrace: the telemetry exporter was still busy {STOP_S:g} s after the end of training; the spans of "
                f"{self._exported} steps were exported, later ones were not; the run directory has everything"
            )
        told = [*self._missing_steps(), *self._missing_records()]
        return f"ddptrace: {'; '.join(told)}" if told else None

    def _missing_steps(self) -> Iterator[str]:
        found = 0 if self._follower is None else self._follower.found()
        reason = "" if self._error is None else f" ({type(self._error).__name__}: {self._error})"
        if found <= self._exported and not reason:
            return
        unread = 0 if self._follower is None else self._follower.losses().unread_steps
        where = "the run directory has everything"
        if unread:
            where = f"{unread} of them were let go before they were read, the run directory has the others"
        yield f"the spans of {found - self._exported} of {found} steps were not exported{reason}; {where}"

    def _missing_records(self) -> Iterator[str]:
        losses = Losses() if self._follower is None else self._follower.losses()
        if losses.records or losses.damaged:
            damaged = len(losses.damaged)
            files = f" and {damaged} file{'s are' if damaged > 1 else ' is'} damaged" if damaged else ""
            yield f"{losses.records} records were lost{files}, so spans lack what they told; ddptrace analyze tells why"

    # In its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(PERIOD_S):
                self._look(final=False)
            self._look(final=True)
        except Exception as error:  # training must not see it
            self._error = error
            if not self._stopping.is_set():
                warn(
                    f"ddptrace stopped exporting spans: {type(error).__name__}: {error} (training is not affected)",
                    stacklevel=3,
                )

    def _look(self, *, final: bool) -> None:
        if self._identity is None:
            self._identity = read_identity(self._folder(), final=final)
        if self._identity is None:
            return
        if self._follower is None:
            self._follower = RankFollower(self._folder())
        try:
            self._catch_up(self._follower, self._identity, final=final)
            if final and self._is_late():
                self._follower.count_the_rest()
        except OSError:  # of its files; they are there again at the next look
            if final:
                raise

    def _catch_up(self, follower: RankFollower, identity: Identity, *, final: bool) -> None:
        """Until nothing waits on the disk, or there is no time left."""
        waits = True
        while waits and not self._is_late():
            waits = follower.read(live=not final)
            while not self._is_late() and (batch := follower.next_batch(identity, final=final and not waits)):
                self._export(batch)

    def _export(self, batch: RankBatch) -> None:
        for tree in trees(of_batch(batch), batch.steps, strays=batch.is_last):
            self._emit(tree)

    def _emit(self, tree: Tree) -> None:
        """One that fails does not keep the others back."""
        if self._is_late():
            return
        try:
            self._emitter.emit(tree)
        except Exception as error:
            self._error = self._error or error
        else:
            self._exported += tree.step is not None

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline
