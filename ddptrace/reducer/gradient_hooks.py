"""How a reducer learns that a gradient is accumulated: a hook on each parameter that requires one.

Reducers that share a parameter must not wait for the same backward: each would reduce the gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ddptrace.reducer.misuse import shared


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


class Sharing(Protocol):
    """What a reducer must know of another one. `expects`: it waits for a backward."""

    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    rivals: weakref.WeakSet[Sharing]
    expects: bool


_in_use: weakref.WeakSet[Sharing] = weakref.WeakSet()


def sharing_with(reducer: Sharing) -> weakref.WeakSet[Sharing]:
    """Return the reducers in use that share a parameter with this one (rare), and add this one to their rivals."""
    own = {id(parameter) for parameter in reducer.parameters}
    rivals = weakref.WeakSet(other for other in _in_use if not own.isdisjoint(map(id, other.parameters)))
    for rival in rivals:
        rival.rivals.add(reducer)
    _in_use.add(reducer)
    return rivals


def clash(reducer: Sharing, rank: int) -> str:
    """Return an error message if a rival already waits for the backward that this reducer is to wait for, else ""."""
    rival = next((rival for rival in reducer.rivals if rival.expects), None)
    return shared(rank, _names_shared(reducer, rival)) if rival else ""


def _names_shared(reducer: Sharing, rival: Sharing) -> list[str]:
    """Return the names, in the reducer, of the parameters that both have."""
    both = {id(parameter) for parameter in rival.parameters}
    return [name for name, own in zip(reducer.names, reducer.parameters, strict=True) if id(own) in both]
