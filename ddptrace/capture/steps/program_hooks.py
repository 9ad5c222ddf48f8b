"""Hooks into the training program: module calls, backward, optimizers, gradient scalers, data loaders.

Calls of modules are watched without a frame around nested ones. `Module.__call__` becomes a descriptor. Python asks it,
by `__get__`, for the method to call, and calls that method after `__get__` has returned:

    outermost module    __get__ returns `outermost`, which calls torch's own function between two time stamps
    nested module       __get__ returns torch's own function

So nested modules run on the same stack as without ddptrace. They nest as deep before Python's recursion limit, and
whatever looks for torch's own frame or function finds it: torch.profiler with stacks reads the module out of that
frame, and Dynamo and torch.fx compare and call the function. `Module.__call__`, read from the class, is torch's
function too.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, FunctionType, MethodType
from typing import Any, Final

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddptrace.capture.origins.modules import ForwardSpans
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.steps.updates import BACKWARD, DATA, FORWARD, OUTSIDE
from ddptrace.capture.surface import Patches, Surface, raise_interrupted

_now = time.perf_counter_ns

AS_FUNCTION: Final = (
    *functools.WRAPPER_ASSIGNMENTS,
    "__code__",
    "__globals__",
    "__closure__",
    "__defaults__",
    "__kwdefaults__",
)
"""Attributes through which Dynamo and `inspect` read a function."""


class _Updates(threading.local):
    """Updates that one thread runs: each thread may train another model."""

    def __init__(self) -> None:
        self.running: list[object] = []  # optimizers (or scalers) whose step is running, outermost first
        self.begin = 0


class Program:
    """Reports to a `StepFinder` what the training program does. `on_root` is called with each outermost module before
    it runs, `on_backward_begin` and `on_backward_end` around each outermost backward, the latter with its ordinal."""

    def __init__(self, steps: StepFinder, surface: Surface, spans: ForwardSpans) -> None:
        self.on_root: Callable[[torch.nn.Module], None] = lambda root: None
        self.on_backward_begin: list[Callable[[], None]] = []
        self.on_backward_end: list[Callable[[int], None]] = []
        self._steps = steps
        self._surface = surface
        self._calls = ModuleCalls(steps, surface, spans, self._enter_forward, self._leave_forward)
        self._updates = _Updates()
        self._handles: list[Any] = []

    def install(self, patches: Patches) -> None:
        self._calls.install(patches)
        patches.replace(torch.autograd, "backward", self.watched_backward)
        patches.replace(torch.amp.GradScaler, "step", self.watched_update)
        patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        self._handles = [
            register_optimizer_step_pre_hook(self._hook(self._update_begins)),
            register_optimizer_step_post_hook(self._hook(self._update_ends)),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, action: Callable[[object], None]) -> Callable[..., None]:
        surface = self._surface

        def hook(optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_compiling():  # a compiled update runs no hook: it would not be the same graph
                surface.call(action, optimizer)

        return hook

    def watched_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        steps, surface = self._steps, self._surface

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not surface.on or steps.is_within_backward():
                return original(*args, **kwargs)
            begin = None
            try:
                begin = self._enter_backward()
                return original(*args, **kwargs)
            finally:
                self._leave_backward(begin)

        return backward

    def watched_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a `step` that torch's optimizer hooks do not cover: a scaler's, which skips the optimizer's step at an
        overflow, and that of an optimizer which lets other workers update."""

        def step(updating: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._surface.call(self._update_begins, updating)
            try:
                return original(updating, *args, **kwargs)
            finally:
                self._surface.call(self._update_ends, updating, _updated(updating, args, kwargs))

        return step

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        here = self._steps.here

        def __next__(iterator: Any) -> Any:
            self._surface.call(self._steps.data_begins)
            begin, was_inside = _now(), here.inside
            here.inside = DATA  # modules that run in there, as transforms are, prepare data
            batch = None
            try:
                batch = original(iterator)
                return batch
            finally:
                here.inside = was_inside
                self._surface.call(self._steps.data, begin, batch)

        return __next__

    def _enter_forward(self, module: torch.nn.Module) -> int | None:
        self._steps.here.inside = FORWARD
        begin: int | None = self._surface.call(self._forward_begins, module)
        return begin

    def _forward_begins(self, module: torch.nn.Module) -> int | None:
        self.on_root(module)
        return self._steps.forward_begins()

    def _leave_forward(self, begin: int | None) -> None:
        self._leave(self._steps.forward_ends, begin)

    def _leave(self, ends: Callable[[int], None], begin: int | None) -> None:
        self._steps.here.inside = OUTSIDE
        if begin is not None:
            self._surface.call(ends, begin)

    def _enter_backward(self) -> int | None:
        self._steps.here.inside = BACKWARD
        begin: int | None = self._surface.call(self._backward_begins)
        return begin

    def _backward_begins(self) -> int | None:
        self._calls.stay()
        begin = self._steps.backward_begins()
        if begin is not None:
            for action in self.on_backward_begin:
                action()
        return begin

    def _leave_backward(self, begin: int | None) -> None:
        backward = self._steps.backwards
        self._leave(self._steps.backward_ends, begin)
        if begin is not None:
            for action in self.on_backward_end:
                self._surface.call(action, backward)
        raise_interrupted()

    def _update_begins(self, optimizer: object) -> None:
        """Only the outermost update counts, unless an exception has ended it: torch calls no hook then."""
        updates = self._updates
        if updates.running and not _is_stepping(updates.running[0]):
            updates.running.clear()
        if not updates.running:
            self._steps.update_begins()
            updates.begin = _now()
        updates.running.append(optimizer)

    def _update_ends(self, updating: object, updated: object = None) -> None:
        """`updated`: the optimizer, if it is not `updating` itself."""
        updates = self._updates
        while updates.running and updates.running.pop() is not updating:
            pass
        if not updates.running:
            self._steps.update_ends(updates.begin, updating if updated is None else updated)


def _updated(updating: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return the optimizer that a scaler's `step` is given, even if it skips it; else `updating` itself."""
    given = args[0] if args else kwargs.get("optimizer")
    return given if isinstance(given, torch.optim.Optimizer) else updating


OPTIMIZER_STEP = "Optimizer.profile_hook_step.<locals>.wrapper"  # torch's own frame around every optimizer's step
UPDATE = "Program.watched_update.<locals>.step"


def _is_stepping(updating: object) -> bool:
    """Whether an optimizer's (or scaler's) step is among the calling thread's frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname == OPTIMIZER_STEP and frame.f_locals.get("self") is updating:
            return True
        if frame.f_code.co_qualname == UPDATE and frame.f_locals.get("updating") is updating:
            return True
        frame = frame.f_back
    return False


class ModuleCalls:
    """Calls `begins(module)` before each outermost module runs, and `ends(begin)` with what that returned after it."""

    def __init__(
        self,
        steps: StepFinder,
        surface: Surface,
        spans: ForwardSpans,
        begins: Callable[[torch.nn.Module], int | None],
        ends: Callable[[int | None], None],
    ) -> None:
        self.steps = steps
        self.surface = surface
        self.spans = spans
        self.begins = begins
        self.ends = ends
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        self._patches = patches
        patches.replace(torch.nn.Module, "__call__", self._watched)

    def stay(self) -> None:
        """Watch again if the program has put another function in place of ours. torch.fx does while it traces: it saves
        the function that it reads from the class and puts that one back."""
        standing = vars(torch.nn.Module)["__call__"]
        if self._patches is not None and not (isinstance(standing, WatchedCall) and standing.calls is self):
            self.install(self._patches)

    def _watched(self, original: Any) -> WatchedCall:
        return WatchedCall(self, original)


class WatchedCall:
    """Stands for `original` in `torch.nn.Module`. Each one keeps the original that it was made for: the program may put
    an earlier one back."""

    def __init__(self, calls: ModuleCalls, original: Any) -> None:
        self.calls = calls
        self.original = original
        self._here = calls.steps.here
        self._surface = calls.surface
        self._is_nested = calls.steps.is_nested
        self._spans = calls.spans
        self._is_function = type(original) is FunctionType  # another of ours passes for one
        run = original if self._is_function else self._run
        self._spanned = calls.spans.around(run)
        self._outermost = self._timed(run)
        functools.update_wrapper(self, original, AS_FUNCTION, updated=())  # its own attributes may have names of ours

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Pass for a function: Dynamo takes ours out of the class's dictionary, for `super().__call__`, and breaks the
        graph at anything else. It then follows the code of `original`, and guards what it reads from the class."""
        return FunctionType if self._is_function else WatchedCall

    def __eq__(self, other: object) -> bool:
        return bool(self.original == (other.original if type(other) is WatchedCall else other))

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    def __dir__(self) -> list[str]:
        """List what a mock is to have that `unittest.mock` specifies by this."""
        return dir(self.original)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the program would read from the class, which outlasts the trace."""
        return getattr, (torch.nn.Module, "__call__")

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self._bound(None, owner)
        if self._surface.on:
            if self._here.inside == OUTSIDE and not self._is_nested() and not is_compiling():
                return MethodType(self._outermost, module)
            if self._spans.on:
                return MethodType(self._spanned, module)
        return MethodType(self.original, module) if self._is_function else self._bound(module, owner)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Called by a program that reads it from the class's dictionary and calls it as a function."""
        if args and issubclass(type(args[0]), torch.nn.Module):
            return self.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
        return self.original(*args, **kwargs)

    def _bound(self, module: Any, owner: type | None) -> Any:
        """Return the method that Python would find: the program may have put an object of any kind into the class."""
        get = getattr(type(self.original), "__get__", None)
        return self.original if get is None else get(self.original, module, owner)

    def _run(self, module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return self._bound(module, type(module))(*args, **kwargs)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        calls, spans, spanned = self.calls, self._spans, self._spanned

        # The first variable is `self` and is the module, as in torch's own function.
        def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # Dynamo follows this function where a compiled one calls a method bound before
                return original(self, *args, **kwargs)
            begin = None
            try:
                begin = calls.begins(self)
                return (spanned if spans.on else original)(self, *args, **kwargs)
            finally:
                calls.ends(begin)

        return __call__
