"""Which module made a node of the autograd graph. Nodes are numbered as they are made, so a module's forward is a span
of numbers; in backward the module is the innermost one whose span holds the number of the running node.

    Block        0 ├─────────────────────────────┤ 9
    Block.up     0 ├────────┤ 3
    Block.down                    5 ├────────┤ 8        node 6 is Block.down's, node 4 is Block's own

Each thread counts separately. Spans cost time, so they are off until a collective needs them.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

from ddptrace.capture.by_identity import IdentitySet
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.surface import Surface

MOST_SPANS: Final = 50_000
"""Spans of one thread, after which the older half is forgotten. A model of 10,000 modules makes as many in five
forwards."""

LEAST_FRAMES: Final = 3
"""Frames that a module takes at least: its call, torch's `_call_impl` and its forward."""

MOST_LOOKED_AT: Final = 4096
MOST_BESIDE: Final = 8
"""Threads whose spans one that ran beside them keeps, should they end before it: their graphs may still be there."""

_number: Final[Callable[[], int]] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
_node: Final[Callable[[], Any]] = getattr(torch._C, "_current_autograd_node", lambda: None)
"""Private names of torch: if one has moved, no module is found in this way."""


class _Spans:
    """The spans of one thread, in the order in which they ended: a module before those around it."""

    __slots__ = ("__weakref__", "begins", "beside", "ends", "names")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.names: list[str] = []
        self.beside: deque[_Spans] = deque(maxlen=MOST_BESIDE)

    def add(self, begin: int, end: int, name: str) -> None:
        if len(self.ends) >= MOST_SPANS:
            for column in (self.begins, self.ends, self.names):
                del column[: MOST_SPANS // 2]
        self.begins.append(begin)
        self.ends.append(end)
        self.names.append(name)

    def around(self, number: int) -> str:
        """Return the name of the innermost module whose span holds the number; "" if none is known."""
        first = bisect_right(self.ends, number)
        for at in range(first, min(first + MOST_LOOKED_AT, len(self.ends))):
            if self.begins[at] <= number:
                return self.names[at]
        return ""


class _Here(threading.local):
    """Dropped with its thread: the next thread may get the same ident, and numbers its nodes from 0 again."""

    spans: _Spans | None = None


class ForwardSpans:
    """`on`: whether modules are called through `around`."""

    def __init__(self, surface: Surface, names: ModuleNames) -> None:
        self.on = False
        self._limit = 0
        self._surface = surface
        self._names = names
        self._here = _Here()
        self._all: IdentitySet[_Spans] = IdentitySet()  # of living threads, and those that one of them keeps

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that runs a module's forward and remembers which nodes it made. A forward that is recomputed
        in backward makes no nodes of the running graph."""
        surface, in_backward, add = self._surface, self.in_backward, self._add

        # The first variable is `self` and is the module, as in torch's own function.
        def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not surface.live or in_backward():
                return original(self, *args, **kwargs)
            begin = _number()
            try:
                return original(self, *args, **kwargs)
            finally:
                end = _number()
                if end > begin:
                    surface.call(add, begin, end, self)

        return __call__

    def turn_on(self) -> None:
        """Call modules through `around` from now on, but not in a program that has compiled a model: torch would
        compile it again.

        Each module then takes one more frame. Python's recursion limit goes up accordingly, for a model that nests so
        deep that it needs all of it."""
        if self.on or _has_compiled():
            return
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self._limit + self._limit // LEAST_FRAMES)
        self.on = True

    def close(self) -> None:
        """Put the recursion limit back, unless the program has changed it."""
        if self.on and sys.getrecursionlimit() == self._limit + self._limit // LEAST_FRAMES:
            sys.setrecursionlimit(self._limit)
        self.on = False

    def in_backward(self) -> bool:
        """Whether this thread runs a node of the graph."""
        return _node() is not None

    def name(self, *, entered: bool) -> str:
        """Return the name of the module that made the running node, "" if it is not known. `entered`: a call on this
        thread led into the engine; otherwise this is a device's thread, which runs nodes that another thread made.

        A node does not say which thread made it. If several threads have run modules, their spans must agree on it."""
        if self._here.spans is None and entered:
            return ""
        number = _node()._sequence_nr()
        names = {spans.around(number) for spans in self._all}
        return names.pop() if len(names) == 1 else ""

    def _add(self, begin: int, end: int, module: torch.nn.Module) -> None:
        spans = self._here.spans
        if spans is None:
            spans = self._here.spans = _Spans()
            self._all.add(spans)
            for other in self._all:
                if other is not spans:
                    other.beside.append(spans)
                    spans.beside.append(other)
        spans.add(begin, end, self._names.name(module))


def _has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("stats"))
