"""How a reducer learns that a gradient is accumulated: a hook on each parameter that requires one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle


class Counts(Protocol):
    """What the hooks call: a reducer."""

    parameters: tuple[Parameter, ...]

    def register_grad_ready(self, index: int) -> None: ...


class GradientHooks:
    """Hooks on parameters. They hold the reducer weakly, so that a model can be dropped; then they are removed."""

    __slots__ = ("_handles", "_parameters", "_reducer")

    def __init__(self, reducer: Counts) -> None:
        self._reducer, self._parameters = weakref.ref(reducer), reducer.parameters
        self._handles: dict[int, RemovableHandle] = {}
        weakref.finalize(reducer, _remove_all, self._handles)

    def watch(self, indices: Iterable[int]) -> None:
        """Watch these parameters, unless they are watched already."""
        for index in indices:
            if index not in self._handles:
                hook = _hook(self._reducer, index)
                self._handles[index] = self._parameters[index].register_post_accumulate_grad_hook(hook)


def _hook(reducer: weakref.ReferenceType[Counts], index: int) -> Callable[[Tensor], None]:
    def gradient_ready(_: Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.register_grad_ready(index)

    return gradient_ready


def _remove_all(handles: dict[int, RemovableHandle]) -> None:
    for handle in handles.values():
        handle.remove()
