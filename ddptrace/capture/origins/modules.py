"""The modules of the program: their names, walks through a model, and which of them made a node of the autograd graph.

Nodes are numbered as they are made, so a module's forward is a span
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn

from ddptrace.capture.by_identity import IdentityMap, IdentitySet
from ddptrace.capture.surface import Surface, tolerating

MOST_STRAYS: Final = 20
"""Modules of one class that no model contains, after which no model is searched for another: the program makes them
anew for each call."""

WRAPPERS: Final = frozenset(("DeepSpeedEngine",))
"""Classes of libraries whose instances keep the module that they wrap as `module`."""

WRAPPED: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which wrappers of torch keep the module that they wrap."""

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


class ModuleNames:
    """Names of modules as the program wrote them: from its outermost module down, without the parts that a wrapper
    (DDP, torch.compile, checkpointing) puts in. The outermost module, and one that no model contains, goes by its
    class.

    Naming a whole model takes long, and a program may make modules without end. So each model is named once, and again
    only when a module has been added to it. After `MOST_STRAYS` modules of one class that no model contains, no model
    is searched for the next one.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        """`roots`: the outermost modules that have run so far."""
        self._roots = roots
        self._known: IdentityMap[nn.Module, str] = IdentityMap()
        self._walked: IdentitySet[nn.Module] = IdentitySet()  # roots
        self._owners: IdentityMap[nn.Parameter, tuple[int, str]] = IdentityMap()  # by place in the model, and by name
        self._strays: IdentityMap[type, int] = IdentityMap()  # by class, modules that no model contains

    def name(self, module: nn.Module) -> str:
        return self._known.get(module) or self._meet(module)

    def owners(self, parameters: Iterable[nn.Parameter]) -> list[str]:
        """Return the names of the modules that hold these parameters, in the order of the model, without parameters
        that no model held when they were first looked up."""
        wanted = list(parameters)
        if not all(parameter in self._owners for parameter in wanted):
            self._find_owners()
        for parameter in wanted:
            if parameter not in self._owners:
                self._owners[parameter] = -1, ""
        places = {self._owners.get(parameter) or (-1, "") for parameter in wanted}
        return list(dict.fromkeys(name for _, name in sorted(places) if name))

    def _find_owners(self) -> None:
        modules = [module for root in self._roots for _, module in named_modules(root)]
        for place, module in enumerate(modules):
            for parameter in parameters_of(module):
                if parameter not in self._owners:
                    self._owners[parameter] = place, self.name(module)

    def _meet(self, module: nn.Module) -> str:
        old = [root for root in self._roots if root in self._walked]
        self._name_all([root for root in self._roots if root not in self._walked])
        strays = self._strays.get(type(module)) or 0
        if module not in self._known and strays < MOST_STRAYS:
            self._name_all([root for root in old if contains(root, module)])
        if module not in self._known:
            self._known[module] = _class_name(module)
            self._strays[type(module)] = strays + 1
        return self._known.get(module) or ""

    def _name_all(self, roots: list[nn.Module]) -> None:
        """Name the modules of these models, the largest first: one may contain another."""
        for pairs in sorted(map(_pairs, roots), key=len, reverse=True):
            for name, module in pairs:
                if module not in self._known:
                    self._known[module] = name
        for root in roots:
            self._walked.add(root)


def _pairs(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what `named` yields, or nothing if the model cannot be walked: its modules then go by their classes."""
    with tolerating():
        return list(named(root))
    return []


def named(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and modules: `root` and those in it. A wrapper goes by the name of the module that it wraps."""
    everything = dict(named_modules(root))
    wrappers = {name for name, module in everything.items() if _is_wrapper(module)}
    short = {name: _without_wrappers(name, wrappers) for name in everything}
    outermost = _class_name([module for name, module in everything.items() if not short[name]][-1])
    for name, module in everything.items():
        yield short[name] or outermost, module


def _is_wrapper(module: nn.Module) -> bool:
    """A data-parallel wrapper, by what torch's and ours have in common, or one of `WRAPPERS`."""
    with tolerating():  # asking may run the program's code
        is_one = hasattr(module, "require_backward_grad_sync") or not WRAPPERS.isdisjoint(
            base.__name__ for base in type(module).__mro__
        )
        return is_one and isinstance(getattr(module, "module", None), nn.Module)
    return False


def _class_name(module: nn.Module) -> str:
    """Return the class as the program wrote it: FSDP2 derives its own class from it."""
    given, base = type(module).__name__, type(module).__bases__[-1].__name__
    return base if given in (f"FSDP{base}", f"Replicate{base}") else given


def _without_wrappers(name: str, wrappers: set[str]) -> str:
    kept: list[str] = []
    above = ""
    for part in name.split(".") if name else ():
        if part not in WRAPPED and not (part == "module" and above in wrappers):
            kept.append(part)
        above = f"{above}.{part}" if above else part
    return ".".join(kept)


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules as torch's method of this name does: `root` first, under the empty name, and each module once."""
    ahead, seen = [("", root)], set[int]()
    while ahead:  # without recursion: modules may nest as deep as Python's own limit
        name, module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            children = [(part, child) for part, child in _children(module).items() if child is not None]
            ahead += [(f"{name}.{part}" if name else part, child) for part, child in reversed(children)]


def contains(root: nn.Module, module: nn.Module) -> bool:
    """Whether `module` is `root` or in it: a walk without names, which is fast."""
    ahead, seen = [root], {id(root)}
    for candidate in ahead:  # grows as it goes
        if candidate is module:
            return True
        children = [child for child in _children(candidate).values() if child is not None and id(child) not in seen]
        seen.update(map(id, children))
        ahead += children
    return False


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the module itself, not those of modules in it. Bypasses subclasses of dict: DeepSpeed's
    gathers a parameter over the ranks when somebody reads it."""
    with tolerating():  # asking may run the program's code
        return [parameter for parameter in dict.values(module._parameters) if isinstance(parameter, nn.Parameter)]
    return []


def _children(module: nn.Module) -> dict[str, Any]:
    """Return a copy of the children: another thread may add modules meanwhile."""
    with tolerating():  # asking may run the program's code
        return dict(getattr(module, "_modules", {}))
    return {}


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
