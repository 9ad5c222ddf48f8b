"""The modules of the program: their names, and walks through a model.

A module may refuse to list its children, as torch's `RemoteModule` does, or have arrived over a wire without any: it
then counts as one without children.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import nn

from ddptrace.capture.by_identity import IdentityMap, IdentitySet

MOST_STRAYS: Final = 20
"""Modules of one class that no model contains, after which no model is searched for another: the program makes them
anew for each call."""

WRAPPERS: Final = frozenset(("DeepSpeedEngine",))
"""Classes of libraries whose instances keep the module that they wrap as `module`."""

WRAPPED: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which wrappers of torch keep the module that they wrap."""


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
    with contextlib.suppress(Exception):
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
    try:
        is_one = hasattr(module, "require_backward_grad_sync") or not WRAPPERS.isdisjoint(
            base.__name__ for base in type(module).__mro__
        )
        return is_one and isinstance(getattr(module, "module", None), nn.Module)
    except Exception:  # asking may run the program's code
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
    try:
        return [parameter for parameter in dict.values(module._parameters) if isinstance(parameter, nn.Parameter)]
    except Exception:  # asking may run the program's code
        return []


def _children(module: nn.Module) -> dict[str, Any]:
    """Return a copy of the children: another thread may add modules meanwhile."""
    try:
        return dict(getattr(module, "_modules", {}))
    except Exception:  # asking may run the program's code
        return {}
