"""The trace around a whole program: from its import of torch to the end of the interpreter.

Importing torch ahead of the program would change it: environment variables that it sets before its own import, such as
thread counts, would come too late.

Lightning without a launcher runs the script again for each further rank, with plain Python. Those ranks are recorded
too, by starting them under `ddptrace.run`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ddptrace.errors import DdptraceError, printable
from ddptrace.findings import ENDED_BY_EXIT, GAVE_WAY
from ddptrace.run.options import Command, Options
from ddptrace.trace_options import when_slow

if TYPE_CHECKING:
    from torch.profiler import profile

    from ddptrace.capture.session import Session
    from ddptrace.telemetry.companion.companion import Companion

STARTERS: Final = (
    "lightning.fabric.strategies.launchers.subprocess_script",
    "lightning_fabric.strategies.launchers.subprocess_script",
)
COMMANDS: Final = ("_basic_subprocess_cmd", "_hydra_subprocess_cmd")


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
                labels=one.labels,
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

    def _profiler(self) -> profile | when_slow | None:
        one = self._options.profile
        if one is None or isinstance(one, when_slow):
            return one
        from torch.profiler import schedule

        from ddptrace.capture.profiler.profilers import scheduled

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


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once, when the module `name` has been imported; at once if it already is."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


class _Watch(MetaPathFinder):
    """Lets the other finders find the package, hooks into their loader for one import, and removes itself."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Loader) -> None:
        """Wrap the loader of this one import. Its class, and so the package's later loaders, stay as they are."""
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del vars(loader)["exec_module"]
            original(module)
            self._imported()

        vars(loader)["exec_module"] = exec_module

    def _imported(self) -> None:
        if self in sys.meta_path:  # another thread may have been faster
            sys.meta_path.remove(self)
            self._action()


def record_further_ranks(argv: Sequence[str], command: Command) -> None:
    """Have Lightning, once the program imports it, start its ranks under `ddptrace.run` with the same options.

    `argv`: the arguments of ddptrace.run, from which `command` was read.
    """
    options = argv[: len(argv) - len(command.args) - 1]
    said = [word for word in options if word != "--"]  # --out follows, which must still be an option
    arguments = ["-m", "ddptrace.run", *said, "--out", str(command.options.out)]
    for name in STARTERS:
        after_import(name, functools.partial(_change, name, arguments))


def _change(name: str, arguments: Sequence[str]) -> None:
    """Wrap the functions that make commands. If a version of Lightning lacks them, further ranks are not recorded."""
    module = sys.modules[name]
    for command in COMMANDS:
        original = getattr(module, command, None)
        if original is not None:
            setattr(module, command, _under_run(original, arguments))


def _under_run(original: Callable[..., Any], arguments: Sequence[str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def command(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if isinstance(made, tuple):  # with the directory to run it in
            return _inserted(made[0], arguments), *made[1:]
        return _inserted(made, arguments)

    return command


def _inserted(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Insert `arguments` behind the path of Python, which is the first word of the command."""
    return [command[0], *arguments, *command[1:]]
