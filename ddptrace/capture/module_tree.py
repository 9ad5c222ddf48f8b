"""The modules in a module, also where one of them refuses to be asked for its own, as torch's `RemoteModule` does, or
came over a wire without any."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As torch's method of this name: `root` first, under the empty name, and each module once."""
    yield from _below(root, "", set())


def _below(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    for part, child in getattr(module, "_modules", {}).items():
        if child is not None:
            yield from _below(child, f"{name}.{part}" if name else part, seen)
