"""Two reducers of one parameter must not both wait for the same backward: each would reduce its gradient."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptrace.reducer.reducer import Reducer

_in_use: weakref.WeakSet[Reducer] = weakref.WeakSet()


def sharing_with(reducer: Reducer) -> weakref.WeakSet[Reducer]:
    """The reducers in use that have a parameter of this one, which are rare; they are told of it."""
    own = {id(parameter) for parameter in reducer.parameters}
    rivals = weakref.WeakSet(one for one in _in_use if not own.isdisjoint(map(id, one.parameters)))
    for rival in rivals:
        rival.rivals.add(reducer)
    _in_use.add(reducer)
    return rivals


def names_shared(reducer: Reducer, rival: Reducer) -> list[str]:
    """The names, in the reducer, of the parameters that both have."""
    both = {id(parameter) for parameter in rival.parameters}
    return [name for name, one in zip(reducer.names, reducer.parameters, strict=True) if id(one) in both]
