"""What the modules of the program are called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import nn

from ddptrace.capture.by_identity import IdentityMap, IdentitySet

MOST_STRAYS: Final = 20
"""After so many modules of one class that no model contains, such are taken to be made anew for each call."""

WRAPPERS: Final = frozenset(("DeepSpeedEngine",))
"""Classes of libraries whose instances keep the module that they wrap as `module`."""

WRAPPED: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which wrappers of torch keep the module that they wrap."""


class ModuleNames:
    """Names of modules as the program wrote them: from its outermost module down, without the parts that a wrapper
    (DDP, torch.compile, checkpointing) puts in. The outermost one goes by its class, as does one that none contains.

    Naming a whole model takes long, and a program may make modules without end: each is named once, and again only
    where it has got a module that it did not have. Nor is a module looked for in all models whose class goes on giving
    such as none of them contains.
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
        """Names of the modules that hold these parameters, in the order of the model. Parameters that no model held
        when they were first asked for are left out."""
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
        """From the largest on: one may contain another."""
        for pairs in sorted(map(_pairs, roots), key=len, reverse=True):
            for name, module in pairs:
                if module not in self._known:
                    self._known[module] = name
        for root in roots:
            self._walked.add(root)


def _pairs(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Of `named`; none where the model cannot be walked: its modules then go by their classes."""
    with contextlib.suppress(Exception):
        return list(named(root))
    return []


def named(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`root` and the modules in it; a wrapper goes by the name of what it wraps."""
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
    """As the program wrote it: FSDP2 puts a class of its own in front."""
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
    """As torch's method of this name: `root` first, under the empty name, and each module once."""
    ahead, seen = [("", root)], set[int]()
    while ahead:  # without recursion: modules may nest as deep as Python's own limit
        name, module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            children = [(part, child) for part, child in _children(module).items() if child is not None]
            ahead += [(f"{name}.{part}" if name else part, child) for part, child in reversed(children)]


def contains(root: nn.Module, module: nn.Module) -> bool:
    """Whether `module` is `root` or in it: a walk without names, which is short."""
    ahead, seen = [root], {id(root)}
    for one in ahead:  # grows as it goes
        if one is module:
            return True
        children = [child for child in _children(one).values() if child is not None and id(child) not in seen]
        seen.update(map(id, children))
        ahead += children
    return False


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Its own, not those of modules in it. Read past what a subclass of dict may do: DeepSpeed's gathers a parameter
    over the ranks once somebody takes it out."""
    try:
        return [parameter for parameter in dict.values(module._parameters) if isinstance(parameter, nn.Parameter)]
    except Exception:  # asking may run the program's code
        return []


def _children(module: nn.Module) -> dict[str, Any]:
    """A copy: another thread may put modules in."""
    try:
        return dict(getattr(module, "_modules", {}))
    except Exception:  # asking may run the program's code
        return {}
