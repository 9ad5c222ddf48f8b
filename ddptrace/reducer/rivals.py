"""Two reducers of one parameter must not both wait for the same backward: each would reduce its gradient."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch.nn import Parameter

from ddptrace.reducer.misuse import shared


class Sharing(Protocol):
    """A reducer, as far as another one has to know it. `expects`: it waits for a backward."""

    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    rivals: weakref.WeakSet[Sharing]
    expects: bool


_in_use: weakref.WeakSet[Sharing] = weakref.WeakSet()


def sharing_with(reducer: Sharing) -> weakref.WeakSet[Sharing]:
    """The reducers in use that have a parameter of this one, which are rare; they are told of it."""
    own = {id(parameter) for parameter in reducer.parameters}
    rivals = weakref.WeakSet(one for one in _in_use if not own.isdisjoint(map(id, one.parameters)))
    for rival in rivals:
        rival.rivals.add(reducer)
    _in_use.add(reducer)
    return rivals


def clash(reducer: Sharing, rank: int) -> str:
    """A sentence where another reducer waits for a backward that this one is to wait for too, "" where none does."""
    rival = next((one for one in reducer.rivals if one.expects), None)
    return shared(rank, _names_shared(reducer, rival)) if rival else ""


def _names_shared(reducer: Sharing, rival: Sharing) -> list[str]:
    """The names, in the reducer, of the parameters that both have."""
    both = {id(parameter) for parameter in rival.parameters}
    return [name for name, one in zip(reducer.names, reducer.parameters, strict=True) if id(one) in both]
