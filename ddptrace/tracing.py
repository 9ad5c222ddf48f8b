"""`ddptrace.trace`: the context manager that a training program wraps around its loop."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ddptrace.errors import DdptraceError, TraceStateError, printable
from ddptrace.keep import Keep
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ddptrace.capture.session import Profile, Session
    from ddptrace.telemetry.companion.companion import Companion
    from ddptrace.telemetry.spans.exporter import Exporter

before_entering: Callable[[Path], None] | None = None
"""A recording around the whole program (`ddptrace.run`) ends here, where the program begins one by itself."""


class trace:
    """Record the training that runs inside this context into a run directory.

    Every rank enters it with the same path. The context raises nothing when it ends, and it never raises into training.

    Args:
        path: The run directory. Ranks of several hosts need one that all of them see.
        profile: Windows of torch.profiler on the program's steps: a schedule, as
            `torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)` returns it, or a
            `torch.profiler.profile(schedule=..., with_stack=True, ...)` that is not yet started. The trace starts,
            steps and stops that profiler, and torch calls its `on_trace_ready` for each window.
        tracer_provider: An OpenTelemetry provider. It receives one span per step, phase, bucket and collective, made
            off the training thread, under the span that is active when the trace is entered. A process beside the
            training exports what the `OTEL_*` variables ask for: metrics, and without a provider spans, too.
        overwrite: Replace a run that `path` already holds.
        keep: Bound on what each rank leaves on the disk. None: 64 MiB. The oldest records go first.

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
    ) -> None:
        _check_profile(profile)
        if keep is not None and not isinstance(keep, Keep):
            raise TraceStateError(
                f"keep={keep!r} does not say what to keep; give ddptrace.Keep(nbytes=..., steps=..., every=...)"
            )
        self._path = run_path(path)
        self._keep = keep
        self._profile = profile
        self._tracer_provider = tracer_provider
        self._overwrite = overwrite
        self._session: Session | None = None
        self._exporter: Exporter | None = None
        self._companion: Companion | None = None

    def __enter__(self) -> trace:
        enter, self._leave = _capture()
        exporter = self._make_exporter()
        if before_entering is not None:
            before_entering(self._path)
        try:
            self._session = enter(
                self._path, profile=self._profile, overwrite=self._overwrite, keep=self._keep,
                traceparent=active_span(),
            )  # fmt: skip
        except OSError as error:  # a full disk: the training matters more than its record
            why = printable(f"ddptrace records nothing into {self._path}: {error}")
            warnings.warn(why, RuntimeWarning, stacklevel=2)
            return self
        if exporter is not None:
            exporter.start()
            self._exporter = exporter
        self._companion = companion_of(self._session, spans=exporter is None)
        return self

    def _make_exporter(self) -> Exporter | None:
        """Raises TraceStateError where `tracer_provider` is none."""
        if self._tracer_provider is None:
            return None
        from ddptrace.telemetry.spans.exporter import Exporter

        return Exporter(self._folder, self._tracer_provider)

    def _folder(self) -> Path:
        """Where this rank writes; it may be renamed once the rank is known."""
        return self._path if self._session is None else self._session.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        self._leave(self._session, error)
        if self._companion is not None:
            self._companion.left()
        if self._exporter is not None:
            self._exporter.stop()
        if self._companion is not None:
            self._companion.leave()
        self._exporter = self._companion = self._session = None

    def step(self) -> None:
        """Mark the end of a step, where ddptrace cannot find it by itself. From then on only marked steps count."""
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
    elif wanted is not None and not callable(wanted):
        raise TraceStateError(
            f"profile={wanted!r} is not a schedule; give what torch.profiler.schedule(wait=..., warmup=..., active=...,"
            " repeat=...) returns, or a torch.profiler.profile with such a schedule"
        )


def active_span() -> str | None:
    """The span of OpenTelemetry that is active here, as W3C's `traceparent`; None where there is none.

    Asked only where the program itself has imported OpenTelemetry: else there is none."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        span = api.get_current_span().get_span_context()
        known = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
        return known if span.is_valid else None
    except Exception:  # somebody's own kind of span: the training matters more than its place
        return None


def companion_of(session: Session, *, spans: bool = True) -> Companion | None:
    """The process that exports what this host's ranks record, where the environment asks for it. Raises nothing. Not
    `spans`: they go elsewhere."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return None
    from ddptrace.telemetry.companion.companion import companion_for

    environ = dict(os.environ) if spans else {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    return companion_for(session.claim.root, session.folder, session.claim.rank, environ)


def _capture() -> tuple[Callable[..., Session], Callable[[Session, BaseException | None], None]]:
    """Import what enters and leaves a session, both at once: the program may not let us import at the end."""
    try:
        from ddptrace.capture.session import enter, leave
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DdptraceError(
            "ddptrace.trace needs torch, which is not installed: pip install 'ddptrace[torch]'"
        ) from None
    return enter, leave
