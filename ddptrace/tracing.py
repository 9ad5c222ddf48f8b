"""`ddptrace.trace`: the context manager that a training program wraps around its loop."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ddptrace.errors import DdptraceError, TraceStateError, needing_torch, printable
from ddptrace.schema import run_path
from ddptrace.trace_options import Keep, labels_of, when_slow

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ddptrace.capture.handlers import WaitingHandlers
    from ddptrace.capture.session import Profile, Session
    from ddptrace.telemetry.companion.companion import Companion
    from ddptrace.telemetry.spans.exporter import Exporter

before_entering: Callable[[Path], None] | None = None
"""Set by `ddptrace.run`: ends its recording when the program itself enters a trace."""


class trace:
    """Record the training that runs inside this context into a run directory.

    Every rank enters it with the same path. Recording never raises into training, and leaving the context raises
    nothing but what the program's signal handlers raise. They wait while the trace is entered or left, and then run.

    Args:
        path: The run directory. With several hosts, all must see this directory.
        profile: Record torch.profiler windows on the program's steps. A schedule, such as
            `torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)`, or a
            `torch.profiler.profile(schedule=..., with_stack=True, ...)` that is not yet started. The trace starts,
            steps and stops that profiler, and torch calls its `on_trace_ready` for each window. Or
            `ddptrace.when_slow(...)`: windows only when steps have become slower. Without a schedule,
            `ddptrace profile` can ask for a window while the job runs.
        tracer_provider: An OpenTelemetry provider. It receives one span per step, phase, bucket and collective, as
            children of the span that is active when the trace is entered; another thread makes them. Separately, if
            `OTEL_*` variables ask for it, a companion process exports metrics, and without a provider also spans.
        overwrite: Replace a run that is already in `path`.
        keep: Limit of what each rank keeps on disk. None: 64 MiB. The oldest records are deleted first.
        name: What to call the run, in the report's header and in telemetry.
        tags: Words that tell the run from others, such as `["baseline", "lr 0.1"]`; they are in the report's header.
        notes: Text for the report's header.

    Raises:
        RunDirectoryError: The directory holds another run or cannot be written.
        TraceStateError: This process is inside another trace, or an argument does not fit.
        DdptraceError: torch is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        profile: Profile | None = None,
        tracer_provider: TracerProvider | None = None,
        overwrite: bool = False,
        keep: Keep | None = None,
        name: str | None = None,
        tags: Iterable[str] | None = None,
        notes: str | None = None,
    ) -> None:
        _check_profile(profile)
        if keep is not None and not isinstance(keep, Keep):
            raise TraceStateError(
                f"keep={keep!r} is not a ddptrace.Keep; give ddptrace.Keep(nbytes=..., steps=..., every=...)"
            )
        self._path = run_path(path)
        self._keep = keep
        self._labels = labels_of(name, tags, notes)
        self._profile = profile
        self._tracer_provider = tracer_provider
        self._overwrite = overwrite
        self._session: Session | None = None
        self._exporter: Exporter | None = None
        self._companion: Companion | None = None

    def __enter__(self) -> trace:
        try:
            enter, self._leave, waiting_handlers = _capture()
        except DdptraceError:
            raise
        except Exception as error:  # the process may open no more files, or the program refuses them
            self._tell_that_nothing_is_recorded(error)
            return self
        exporter = self._make_exporter()
        if before_entering is not None:
            before_entering(self._path)
        handlers, self._handlers = waiting_handlers(), waiting_handlers()
        try:
            handlers.hold()
            self._begin(enter, exporter)
        finally:
            self._let_run(handlers)
        return self

    def _let_run(self, handlers: WaitingHandlers) -> None:
        """Let handlers of signals run that have waited while the trace was entered; what they raise ends the trace."""
        try:
            handlers.release()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _begin(self, enter: Callable[..., Session], exporter: Exporter | None) -> None:
        try:
            self._session = enter(
                self._path,
                profile=self._profile,
                overwrite=self._overwrite,
                keep=self._keep,
                labels=self._labels,
                traceparent=active_span(),
            )
        except DdptraceError:
            raise
        except Exception as error:  # a full disk, or the program's own hook that refuses files: training goes on
            self._tell_that_nothing_is_recorded(error)
            return
        if exporter is not None and exporter.start():
            self._exporter = exporter
        self._companion = companion_of(self._session, spans=exporter is None)

    def _tell_that_nothing_is_recorded(self, error: Exception) -> None:
        why = printable(f"ddptrace cannot record into {self._path}: {error}; training goes on without a trace")
        warnings.warn(why, RuntimeWarning, stacklevel=4)

    def _make_exporter(self) -> Exporter | None:
        """Make the exporter of spans, if any. Raises TraceStateError if `tracer_provider` is not a provider."""
        if self._tracer_provider is None:
            return None
        from ddptrace.telemetry.spans.exporter import Exporter

        return Exporter(self._folder, self._tracer_provider)

    def _folder(self) -> Path:
        """Return this rank's folder, which is renamed once the rank is known."""
        return self._path if self._session is None else self._session.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        try:
            try:
                self._handlers.hold()
            finally:  # one may have raised before it waited
                self._end(self._session, error)
        finally:
            self._handlers.release()

    def _end(self, session: Session, error: BaseException | None) -> None:
        self._leave(session, error)
        if self._companion is not None:
            self._companion.left()
        if self._exporter is not None:
            self._exporter.stop()
        if self._companion is not None:
            self._companion.leave()
        self._exporter = self._companion = self._session = None

    def step(self) -> None:
        """Mark the end of a step, if ddptrace cannot find it by itself. From then on, only marked steps count."""
        if self._session is not None:
            self._session.say_step()


def _check_profile(wanted: object) -> None:
    profiler = sys.modules.get("torch.profiler")  # imported by whoever made a schedule or a profiler
    if profiler is not None and isinstance(wanted, profiler.profile):
        if not wanted.record_steps:
            raise TraceStateError(
                "profile= is a torch.profiler.profile without a schedule, which would record the whole training; give"
                " it schedule=torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)"
            )
        if wanted.profiler is not None:
            raise TraceStateError(
                "profile= is a torch.profiler.profile that has already been started; give a new one, which the trace"
                " starts, steps and stops"
            )
    elif isinstance(wanted, type) or not (wanted is None or callable(wanted) or isinstance(wanted, when_slow)):
        raise TraceStateError(
            f"profile={wanted!r} is not a schedule; give what torch.profiler.schedule(wait=..., warmup=..., active=...,"
            " repeat=...) returns, a torch.profiler.profile with such a schedule, or ddptrace.when_slow(...)"
        )


def active_span() -> str | None:
    """Return the active span of OpenTelemetry as W3C's `traceparent`; None if there is none.

    None, too, if the program has not imported OpenTelemetry.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        span = api.get_current_span().get_span_context()
        known = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
        return known if span.is_valid else None
    except Exception:  # an unusual span class must not break training
        return None


def companion_of(session: Session, *, spans: bool = True) -> Companion | None:
    """Start the process that exports what this host's ranks record, if the environment asks for it. Raises nothing.

    `spans`: False if a provider already receives the spans.
    """
    if not any(name.startswith("OTEL_") for name in os.environ):
        return None
    from ddptrace.telemetry.companion.companion import companion_for

    environ = dict(os.environ) if spans else {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    return companion_for(session.claim.root, session.folder, session.claim.rank, environ)


Entered = tuple[
    Callable[..., "Session"], Callable[["Session", BaseException | None], None], Callable[[], "WaitingHandlers"]
]


def _capture() -> Entered:
    """Import what enters and leaves a session, all at once: the program may not let us import at the end."""
    with needing_torch("ddptrace.trace"):
        from ddptrace.capture.handlers import WaitingHandlers
        from ddptrace.capture.session import enter, leave
    return enter, leave, WaitingHandlers
