"""One place where training is watched: a surface. If it fails, it fails alone and once.

What failed is noted in one line, without the place in C++. The manifest also lists what no surface can see.
"""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

import torch
from torch._C import _current_graph_task_id

from ddptrace.errors import printable
from ddptrace.findings import STOPPED_WATCHING, SURFACE_FAILED, FindingKind

unseen: Final = torch._C.DisableTorchFunction
"""A context in which reading a tensor calls no code of the program: neither its function modes nor its subclasses."""

LENGTH_MAX: Final = 160
RAISED_AT: Final = re.compile(r"^\[[^\]\s]*:\d+\]\s*")
"""A message from C++ begins with the place that raised it."""


class Surface:
    """One surface. Its first failure warns, leaves a note for the findings and switches it off. `on`: it works. `live`:
    it works and the running step is recorded; what costs time in every collective checks this."""

    def __init__(self, name: str, note: Callable[[FindingKind, str], None]) -> None:
        self.name = name
        self.on = self.live = True
        self._note = note

    def off(self) -> None:
        self.on = self.live = False

    def pause(self, paused: bool) -> None:
        self.live = self.on and not paused

    def failed(self, error: BaseException) -> None:
        """Switch this surface off, and tell so once.

        What the program has raised meanwhile, by a signal's handler or from another thread, is no failure. It is raised
        again, and within a backward at the end of that, as without a trace."""
        if is_raised_into(error):
            if _current_graph_task_id() < 0:
                raise error
            interrupted.append(error)
            return
        if not self.on:
            return
        self.off()
        message = f"{STOPPED_WATCHING} {self.name}: {_worded(error)}"
        with contextlib.suppress(Exception):  # the program may have made errors of warnings
            self._note(SURFACE_FAILED, message)
            warnings.warn(printable(f"{message} (training is not affected)"), RuntimeWarning, stacklevel=3)

    def guarded(self, action: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `action` as `call` does."""
        return functools.partial(self.call, action)

    def call(self, action: Callable[..., Any], *args: Any) -> Any:
        """Return what `action` returns; None if it raises, or if this surface is off."""
        return self.attempt(action, *args) if self.on else None

    def attempt(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run `action` even if the surface is off; switch it off if that raises: training must not see it."""
        try:
            with unseen():
                return action(*args)
        except Exception as error:
            self.failed(error)
            return None


interrupted: Final[list[BaseException]] = []
"""What the program has raised into hooks within a backward that has not yet ended."""


def raise_interrupted() -> None:
    """Raise what the program has raised into hooks within the backward that has just ended."""
    if interrupted:
        error = interrupted[0]
        interrupted.clear()
        raise error


class tolerating:
    """A context that ends quietly at an error, for what may run code of the program. What the program raises into it
    from elsewhere goes on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, Exception) and not is_raised_into(error)


def is_raised_into(error: BaseException) -> bool:
    """Whether the program has raised it here by a signal's handler or from another thread."""
    return _is_from_a_handler(error) or _is_from_another_thread(error)


def _is_from_a_handler(error: BaseException) -> bool:
    """Whether it came through a Python function that handles a signal."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code not in handlers:
        at = at.tb_next
    return at is not None


OWN: Final = frozenset(("ddptrace", "torch", *sys.stdlib_module_names))
"""Packages whose errors our code may raise by itself."""


def _is_from_another_thread(error: BaseException) -> bool:
    """Whether another thread of the program has raised it here, by `PyThreadState_SetAsyncExc`: an error of the
    program's class that none of the program's code has raised."""
    return not _is_own(type(error).__module__) and all(
        _is_own(str(frame.f_globals.get("__name__"))) for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in OWN


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs first when `handler` is called; None where that is no Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # of a method
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - of an object, as Python finds it
    return getattr(function, "__code__", None)


def _worded(error: BaseException) -> str:
    name = type(error).__name__
    with contextlib.suppress(Exception):  # the str() of an exception of the program may raise
        return f"{name}: {error}"
    return name


class Patches:
    """Attributes replaced for the time of a trace. `undo` puts back the very objects that were there.

    An attribute that somebody else has replaced meanwhile is left alone: theirs wraps ours, which is inert by then.
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, object, object]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        """Set `owner.name` to `make(original)`; the original is read from `owner.__dict__`.

        A function gets the original's name, module and signature, so that it can be inspected and pickled alike."""
        original = vars(owner)[name]
        replacement = make(original)
        if isinstance(replacement, FunctionType) and callable(original):
            functools.update_wrapper(replacement, original)
        setattr(owner, name, replacement)
        self._done.append((owner, name, original, replacement))

    def undo(self) -> list[str]:
        """Put the originals back. Return the names of attributes that somebody else has replaced meanwhile."""
        first = {(id(owner), name): (owner, original) for owner, name, original, _ in reversed(self._done)}
        for owner, name, original, replacement in reversed(self._done):
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._done.clear()
        return [
            f"{getattr(owner, '__name__', owner)}.{name}"
            for (_, name), (owner, original) in first.items()
            if vars(owner).get(name) is not original
        ]


class ThreadState(threading.local):
    """What a hook must know of its own thread. `hook`: seq of the user's communication hook that runs, 0 for none.
    `bucket`: number of the `BucketedDataParallel` reducer whose bucket is being launched, 0 for none."""

    hook = 0
    bucket = 0
    ready: object = None
    """The device event at which the inputs of the collective that is being issued are ready."""

    unit: Any = None
    """The `Part` of a unit (`capture/units/unit_records.py`) that the thread communicates for; None for none."""

    last_work: object = None
    """The Work of the last Python call, kept so that the caller is handed this very object and its wait is known."""

    def __init__(self) -> None:  # once in each thread
        self.batches: dict[int, list[int]] = {}
        """Seqs of the calls that a backend is to start together, by the string id of the group, of open batches."""


def failure_of(future: Any) -> str:
    """Return the error that a completed future holds, in one line; "" if it succeeded."""
    try:
        future.value()
    except Exception as error:
        return failure_words(error)
    return ""


def error_words(error: BaseException) -> str:
    """Return the type of the error and the first sentence of its message; the type alone if it has no message."""
    kind, words = type(error).__name__, printable(failure_words(error))
    return kind if words == kind else f"{kind}: {words}"


def failure_words(error: BaseException) -> str:
    """Return the first sentence of the error's message; its type if it has no message."""
    try:
        line = next(iter(str(error).splitlines()), "")
    except Exception:  # the message is made by code of the program
        line = ""
    return RAISED_AT.sub("", line).partition(". ")[0][:LENGTH_MAX].strip() or type(error).__name__


ALWAYS_UNSEEN: Final = (
    "the time of communication hooks registered before the trace: their collectives are seen, the rest of their time "
    "counts as backward",
    "collectives, forwards and backwards inside the replay of a CUDA graph: they are seen when the graph is captured, "
    "not when it is replayed; a profiler window shows its kernels",
    "collectives issued on a backend object, beneath its process group, and those of a process group written in Python",
    "how a backend carries out a call: what NCCL fuses into one kernel is recorded as the calls it was given, "
    "monitored_barrier as one call without bytes, and the checks of TORCH_DISTRIBUTED_DEBUG=DETAIL not at all",
    "what goes through a store: making and leaving groups, rendezvous",
    "whether the program waits at once for a send or a receive: such calls do not show it",
    "the ranks of a group that torch.distributed does not list, such as one of ProcessGroup.split_group: only their "
    "number is known",
    "a forward called by its name (`module.forward(x)`) instead of through the module",
    "backward phases of torch.autograd.grad, and of a `backward` function imported before the trace",
    "steps, phases and buckets of a second training that runs in another thread",
    "which bucket a collective is if several threads run backwards of DDP models at once",
    "what data loader workers and other child processes do",
)

UNSEEN_WITHOUT_THE_TAP: Final = (
    "collectives that C++ issues: the buckets and buffers of DistributedDataParallel, functional collectives, DTensor, "
    "compiled code (the dispatcher tap, which sees them, does not work with this torch)"
)

UNSEEN_OF_REMOTE_CALLS: Final = (
    "runs of builtin operators and TorchScript functions at the callee, and the payload beside their tensors",
    "calls that TorchScript itself makes",
    "the wire beside payloads and tensors: message headers, reference counting, the request of a to_here",
    "gradients of arguments if the callee is not traced or runs no Python: inferred from the arguments",
    "the phase and the waits of a distributed backward if its function was imported before the trace",
)

UNSEEN_WITHOUT_SCHEDULER_TIMES: Final = (
    "how long the training thread waits for a processor, and its processor time: this system does not report them"
)

UNSEEN_WITHOUT_LINUX: Final = (
    "network links and processor quotas: unlike Linux, this system reports neither TCP connections nor quotas"
)
