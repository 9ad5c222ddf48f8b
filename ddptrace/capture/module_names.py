"""What the modules of the program are called."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Final

from torch import nn

from ddptrace.capture.module_tree import named_modules

WRAPPED: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes under which wrappers of torch keep the module that they wrap."""


class ModuleNames:
    """Names of modules as the program wrote them: from its outermost module down, without the parts that a wrapper
    (DDP, torch.compile, checkpointing) puts in. The outermost one goes by its class, as does one that none contains."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        """`roots`: the outermost modules that have run so far."""
        self._roots = roots
        self._known: dict[int, tuple[weakref.ReferenceType[nn.Module], str]] = {}

    def name(self, module: nn.Module) -> str:
        return self._find(module) or self._meet(module)

    def _find(self, module: nn.Module) -> str | None:
        known = self._known.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def _meet(self, module: nn.Module) -> str:
        """Name all that there is by now, from the largest root on: one may contain another."""
        self._known = {number: known for number, known in list(self._known.items()) if known[0]() is not None}
        for pairs in sorted((list(named(root)) for root in list(self._roots)), key=len, reverse=True):
            for name, one in pairs:
                if self._find(one) is None:
                    self._known[id(one)] = weakref.ref(one), name
        if self._find(module) is None:
            self._known[id(module)] = weakref.ref(module), _class_name(module)
        return self._known[id(module)][1]


def named(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`root` and the modules in it; a wrapper goes by the name of what it wraps."""
    everything = dict(named_modules(root))
    wrappers = {name for name, module in everything.items() if _is_data_parallel(module)}
    short = {name: _without_wrappers(name, wrappers) for name in everything}
    outermost = _class_name([module for name, module in everything.items() if not short[name]][-1])
    for name, module in everything.items():
        yield short[name] or outermost, module


def _is_data_parallel(module: nn.Module) -> bool:
    """By what torch's wrapper and ours have in common."""
    return hasattr(module, "require_backward_grad_sync") and isinstance(getattr(module, "module", None), nn.Module)


def _class_name(module: nn.Module) -> str:
    """As the program wrote it: FSDP2 puts a class of its own in front."""
    given, base = type(module).__name__, type(module).__bases__[-1].__name__
    return base if given in (f"FSDP{base}", f"Replicate{base}") else given


def _without_wrappers(name: str, data_parallel: set[str]) -> str:
    kept: list[str] = []
    above = ""
    for part in name.split(".") if name else ():
        if part not in WRAPPED and not (part == "module" and above in data_parallel):
            kept.append(part)
        above = f"{above}.{part}" if above else part
    return ".".join(kept)
