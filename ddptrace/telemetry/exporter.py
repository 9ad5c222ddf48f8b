"""The thread that turns this rank's own records into spans while training runs."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from opentelemetry.trace import TracerProvider

import ddptrace
from ddptrace.errors import TraceStateError
from ddptrace.telemetry.follow import Batch, Follower, Identity, read_identity
from ddptrace.telemetry.spans import Emitter
from ddptrace.telemetry.trees import Tree, trees

PERIOD_S: Final = 2.0
STOP_S: Final = 5.0
"""How long `stop` takes at most, however slow the provider's exporter is."""


class Exporter:
    """Follows the record files of one rank and hands their spans to a provider; knows nothing of torch.

    `folder` is asked at every look, since a rank's folder gets its name once its rank is known. What follows a step is
    waited for before the step's spans are made, and before the first one a few steps more, until it is clear what
    ends a step. Profiler windows are not used: their files come late, and `ddptrace analyze` has them. At most
    `follow.MAX_RECORDS` records are held. A failure is told by one warning and ends the export, never the training.
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
        self._follower: Follower | None = None
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
            _warn(message)

    def _complaint(self) -> str | None:
        where = "the run directory has everything"
        if self._thread.is_alive():
            return (
                f"ddptrace: the telemetry exporter was still busy {STOP_S:g} s after the end of training; the spans of "
                f"{self._exported} steps were exported, later ones were not; {where}"
            )
        found = 0 if self._follower is None else self._follower.found()
        reason = "" if self._error is None else f" ({type(self._error).__name__}: {self._error})"
        if found > self._exported or reason:
            return (
                f"ddptrace: the spans of {found - self._exported} of {found} steps were not exported{reason}; {where}"
            )
        return None

    # In its own thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(PERIOD_S):
                self._look(final=False)
            self._look(final=True)
        except Exception as error:  # training must not see it
            self._error = error
            if not self._stopping.is_set():
                _warn(f"ddptrace stopped exporting spans: {type(error).__name__}: {error} (training is not affected)")

    def _look(self, *, final: bool) -> None:
        if self._identity is None:
            self._identity = read_identity(self._folder(), final=final)
        if self._identity is None:
            return
        if self._follower is None:
            self._follower = Follower(self._folder())
        self._follower.read(live=not final)
        while not self._is_late() and (batch := self._follower.next_batch(self._identity, final=final)) is not None:
            self._export(batch)

    def _export(self, batch: Batch) -> None:
        for tree in trees(batch.result, batch.steps, strays=batch.is_last):
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


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    except RuntimeWarning:  # the program turns warnings into errors; leaving a trace raises nothing
        sys.stderr.write(f"{message}\n")
