"""Reducers that share a parameter must not wait for the same backward: each would reduce the gradient."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch.nn import Parameter

from ddptrace.reducer.misuse import shared


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
