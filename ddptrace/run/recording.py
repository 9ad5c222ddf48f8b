"""The trace around a whole program: from its import of torch to the end of the interpreter."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ddptrace.errors import DdptraceError, printable
from ddptrace.findings import ENDED_BY_EXIT, GAVE_WAY
from ddptrace.run.after_import import after_import
from ddptrace.run.options import Options

if TYPE_CHECKING:
    from torch.profiler import profile

    from ddptrace.capture.session import Session
    from ddptrace.telemetry.companion.companion import Companion


class Recording:
    """The recording of one process. A child that it forks neither begins nor ends it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: Session | None = None
        self._companion: Companion | None = None
        self._told = False  # has printed why there is nothing to record
        self._pid = os.getpid()
        self._exit: SystemExit | None = None
        self._hard_exit = HardExit(self._exits)

    def arm(self) -> None:
        """Record from the program's import of torch on. `end`, registered first, runs after the program's handlers."""
        atexit.register(self.end)
        after_import("torch", self.begin)

    @contextmanager
    def only_if_it_runs(self) -> Iterator[None]:
        """If there is no program to run, do not also report that nothing was recorded."""
        try:
            yield
        except DdptraceError:
            self._told = True
            raise

    def begin(self) -> None:
        """Begin to record. A refused directory ends the process with exit code 2; a failure to write does not."""
        if os.getpid() != self._pid:
            return
        from ddptrace import tracing

        try:
            from ddptrace.capture.session import enter

            one = self._options
            self._session = enter(
                one.out,
                profile=self._profiler(),
                overwrite=one.overwrite,
                keep=one.keep,
                traceparent=tracing.active_span(),
            )
            self._companion = tracing.companion_of(self._session)
        except DdptraceError as error:
            self._told = True
            refuse(error)
        except Exception as error:  # a full disk, a name that torch has moved: training goes on
            why = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._tell(f"cannot record into {self._options.out}: {printable(why)}; the program runs without a trace")
        tracing.before_entering = self.give_way
        self._hard_exit.watch()

    def _profiler(self) -> profile | None:
        if self._options.profile is None:
            return None
        from torch.profiler import schedule

        from ddptrace.capture.profiler.windows import scheduled

        one = self._options.profile
        steps = schedule(wait=one.wait, warmup=one.warmup, active=one.active, repeat=one.repeat)
        return scheduled(steps, **dict.fromkeys(one.options, True))

    def give_way(self, path: Path) -> None:
        """End this recording, since the program itself enters a trace into `path`; a process has only one trace.

        What was recorded so far stays, with a note; if both directories are the same, it is removed.
        """
        session, self._session = self._session, None
        if session is None:
            return
        from ddptrace.capture.session import leave
        from ddptrace.record.directory import release

        message = f"the program itself entered ddptrace.trace({path}): this recording ends there"
        session.recorder.note(GAVE_WAY, message)
        leave(session)
        is_same = path.resolve() == self._options.out.resolve()
        self._leave_companion(is_wanted=not is_same)
        if is_same:
            release(session.claim.root, session.folder, session.claim.rank)
        else:
            self._tell(message)

    def _leave_companion(self, *, is_wanted: bool) -> None:
        companion, self._companion = self._companion, None
        if companion is not None:
            companion.leave() if is_wanted else companion.drop()

    def ended_by(self, error: SystemExit) -> None:
        """Take note of a sys.exit of the program, which Python does not keep."""
        self._exit = error

    def _exits(self, status: int) -> None:
        """Note that the program ends the process by os._exit. In a forked child, this writes nothing."""
        if self._session is not None and status:
            message = f"os._exit({status}) ended the process{self._session.of_rank()}: nothing after that was recorded"
            self._session.recorder.note(ENDED_BY_EXIT, message)

    def end(self) -> None:
        if os.getpid() != self._pid:
            return
        self._hard_exit.leave()
        if self._session is not None:
            from ddptrace.capture.session import leave

            leave(self._session, getattr(sys, "last_value", None) or self._exit)  # the exception that ended the program
            self._leave_companion(is_wanted=True)
        elif "torch" not in sys.modules:
            self._tell("nothing was recorded, because the program did not import torch")

    def _tell(self, sentence: str) -> None:
        if not self._told:
            self._told = True
            print(f"ddptrace.run: {printable(sentence)}", file=sys.stderr)


class HardExit:
    """Calls `told(status)` before `os._exit` ends the process, from `watch` to `leave`.

    It misses callers that took a reference to the function before, and signals.
    """

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._original: Callable[..., Any] = os._exit
        self._ours: Callable[..., Any] | None = None

    def watch(self) -> None:
        original = self._original = os._exit

        @functools.wraps(original)
        def _exit(status: int) -> Any:
            with contextlib.suppress(Exception):
                self._told(status)
            return original(status)

        os._exit = self._ours = _exit

    def leave(self) -> None:
        """Restore the original, unless somebody else has replaced it meanwhile."""
        if self._ours is not None and os._exit is self._ours:
            os._exit = self._original


def refuse(error: DdptraceError) -> NoReturn:
    """Print a user's mistake and end the process with exit code 2."""
    print(f"ddptrace.run: {printable(error)}", file=sys.stderr)
    sys.exit(2)
