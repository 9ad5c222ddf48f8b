"""The thread in a training that makes spans of its own rank's records, for the user's `TracerProvider`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from opentelemetry.trace import TracerProvider

from ddptrace.errors import TraceStateError
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.live.rank_follower import RankFollower
from ddptrace.live.run_folders import read_identity
from ddptrace.telemetry.environment import warn
from ddptrace.telemetry.rows import of_batch
from ddptrace.telemetry.spans.emitter import Emitter
from ddptrace.telemetry.spans.trees import Tree, trees
from ddptrace.version import __version__

PERIOD_S: Final = 2.0
STOP_S: Final = 2.0
"""The longest that `stop` takes, however slow the provider's exporter is."""


class Exporter:
    """Follows the record files of one rank and gives their spans to a provider. Knows nothing of torch.

    `folder` is called at every look, because a rank's folder gets its name only when the rank is known. The spans of a
    step are made once the next step has begun, and those of the first step a few steps later, when it is clear what
    ends a step. Profiler windows are not used: their files come late, and `ddptrace analyze` has them. If the provider
    is slow, records wait on the disk. A failure causes one warning and ends the export, never the training.
    """

    def __init__(self, folder: Callable[[], Path], provider: TracerProvider) -> None:
        """Raise TraceStateError if `provider` is not a TracerProvider."""
        if not callable(getattr(provider, "get_tracer", None)):
            raise TraceStateError(
                f"tracer_provider={provider!r} is not an OpenTelemetry TracerProvider; give "
                "opentelemetry.sdk.trace.TracerProvider() or opentelemetry.trace.get_tracer_provider()"
            )
        self._folder = folder
        self._provider = provider
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="ddptrace-telemetry", daemon=True)
        self._follower: RankFollower | None = None
        self._identity: Identity | None = None
        self._emitter: Emitter | None = None
        self._exported = 0
        self._error: Exception | None = None

    def start(self) -> bool:
        """Start the thread. Return False, with a warning, if the system gives no more threads."""
        try:
            self._thread.start()
        except RuntimeError as error:
            warn(f"ddptrace exports no spans: {error}; the run directory has everything", stacklevel=4)
            return False
        return True

    def stop(self) -> None:
        """Export the rest of the closed record files within `STOP_S` seconds, and warn of what was not exported."""
        self._deadline = time.monotonic() + 0.9 * STOP_S  # the thread gives up a little earlier than we do
        self._stopping.set()
        self._thread.join(STOP_S)
        message = self._complaint()
        if message is not None:
            warn(message, stacklevel=4)

    def _complaint(self) -> str | None:
        if self._thread.is_alive():
            return (
                f"ddptrace: the telemetry exporter was still busy {STOP_S:g} s after the end of training; it exported "
                f"the spans of {self._exported} steps and not the later ones; the run directory has everything"
            )
        missing = [*self._missing_steps(), *self._missing_records()]
        return f"ddptrace: {'; '.join(missing)}" if missing else None

    def _missing_steps(self) -> Iterator[str]:
        found = 0 if self._follower is None else self._follower.found()
        reason = "" if self._error is None else f" ({type(self._error).__name__}: {self._error})"
        if found <= self._exported and not reason:
            return
        unread = 0 if self._follower is None else self._follower.losses().unread_steps
        where = "the run directory has everything"
        if unread:
            where = f"{unread} of them were deleted before they were read; the run directory has the others"
        yield f"the spans of {found - self._exported} of {found} steps were not exported{reason}; {where}"

    def _missing_records(self) -> Iterator[str]:
        losses = Losses() if self._follower is None else self._follower.losses()
        if losses.records or losses.damaged:
            damaged = len(losses.damaged)
            files = f" and {damaged} file{'s are' if damaged > 1 else ' is'} damaged" if damaged else ""
            yield f"{losses.records} records were lost{files}, so spans are incomplete; `ddptrace analyze` explains why"

    # In its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(PERIOD_S):
                self._look(final=False)
            self._look(final=True)
        except Exception as error:  # must not reach training
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
        except OSError:  # reading its files failed; the next look tries again
            if final:
                raise

    def _catch_up(self, follower: RankFollower, identity: Identity, *, final: bool) -> None:
        """Export until nothing waits on the disk, or time is up."""
        waits = True
        while waits and not self._is_late():
            waits = follower.read(live=not final)
            while not self._is_late() and (batch := follower.next_batch(identity, final=final and not waits)):
                self._export(batch)

    def _export(self, batch: RankBatch) -> None:
        for tree in trees(of_batch(batch), batch.steps, strays=batch.is_last):
            self._emit(tree)

    def _emit(self, tree: Tree) -> None:
        """Emit a tree. If it fails, the others are still emitted."""
        if self._is_late():
            return
        try:
            self._emitter = self._emitter or Emitter(self._provider, __version__)
            self._emitter.emit(tree)
        except Exception as error:
            self._error = self._error or error
        else:
            self._exported += tree.step is not None

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline
