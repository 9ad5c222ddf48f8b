"""Calls of modules, watched without a frame around nested ones.

`Module.__call__` becomes a descriptor. Python asks it, by `__get__`, for the method to call, and calls that method
after `__get__` has returned:

    outermost module    __get__ returns `outermost`, which calls torch's own function between two time stamps
    nested module       __get__ returns torch's own function

So nested modules run on the same stack as without ddptrace. They nest as deep before Python's recursion limit, and
whatever looks for torch's own frame or function finds it: torch.profiler with stacks reads the module out of that
frame, and Dynamo and torch.fx compare and call the function. `Module.__call__`, read from the class, is torch's
function too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch.compiler import is_compiling

from ddptrace.capture.origins.forward_spans import ForwardSpans
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.steps.updates import OUTSIDE
from ddptrace.capture.surface import Patches, Surface

AS_FUNCTION: Final = (
    *functools.WRAPPER_ASSIGNMENTS,
    "__code__",
    "__globals__",
    "__closure__",
    "__defaults__",
    "__kwdefaults__",
)
"""Attributes through which Dynamo and `inspect` read a function."""


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
        functools.update_wrapper(self, original, AS_FUNCTION)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Pass for a function: Dynamo takes ours out of the class's dictionary, for `super().__call__`, and breaks the
        graph at anything else. It then follows the code of `original`, and guards what it reads from the class."""
        return FunctionType if self._is_function else WatchedCall

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if module is None:
            return self._bound(None, owner)
        if self._surface.on:
            if self._here.inside == OUTSIDE and not self._is_nested() and not is_compiling():
                return MethodType(self._outermost, module)
            if self._spans.on:
                return MethodType(self._spanned, module)
        return MethodType(self.original, module) if self._is_function else self._bound(module, owner)

    def __call__(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Called by a program that reads it from the class's dictionary and calls it as a function."""
        return self.__get__(module, type(module))(*args, **kwargs)

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
