"""The modules in a module, also where one of them refuses to be asked for its own, as torch's `RemoteModule` does, or
came over a wire without any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


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
