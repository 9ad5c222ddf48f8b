"""How a reducer learns of gradients: a hook on each parameter that requires one tells when it is accumulated.

Which parameters a step did not use is found out on this rank by a walk through the autograd graph, and on all ranks by
a bitmap.

Reducers that share a parameter must not wait for the same backward: each would reduce the gradient.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ddptrace.reducer.misuse import shared
from ddptrace.reducer.peers import Peers


def tensors_in(output: object) -> Iterator[Tensor]:
    """Yield the tensors in the output of a forward: alone, or in lists, tuples, mappings and dataclasses at any
    depth."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, list | tuple | set | frozenset):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name))


def parameters_reached(output: object) -> set[int]:
    """Return the `id` of every leaf that gets a gradient when backward starts from `output`."""
    ahead: list[Any] = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
    seen, reached = set(ahead), {id(t) for t in tensors_in(output) if t.is_leaf and t.requires_grad}
    while ahead:
        edges: Iterable[tuple[Any, int]] = ahead.pop().next_functions
        for node, _ in edges:
            if node is None or node in seen:
                continue
            seen.add(node)  # keeps the node alive, so that Python gives its id to no other node
            if type(node) is _ACCUMULATE:
                reached.add(id(node.variable))  # type: ignore[attr-defined] # it has one, by its type
            else:
                ahead.append(node)
    return reached


class Bitmap:
    """A 1 for each parameter that some rank used. It is sent after the buckets, in the same place on all ranks."""

    __slots__ = ("_device", "_peers", "_sent")

    def __init__(self, peers: Peers, device: torch.device) -> None:
        self._peers, self._device = peers, device
        self._sent: tuple[dist.Work, Tensor] | None = None

    def send(self, used: Iterable[bool]) -> None:
        """Send the bitmap. `used`: for each parameter, whether this rank used it."""
        bitmap = torch.tensor(list(map(int, used)), dtype=torch.int32, device=self._device)
        self._sent = (dist.all_reduce(bitmap, dist.ReduceOp.MAX, group=self._peers.group, async_op=True), bitmap)

    def unused_by_all(self, *, known: bool) -> frozenset[int]:
        """Return the parameters that no rank used; none if no bitmap was sent. `known`: this rank used all of them."""
        if self._sent is None:
            return frozenset()
        (work, bitmap), self._sent = self._sent, None
        self._peers.wait(work, "the bitmap of used parameters")
        return frozenset() if known else frozenset(index for index, used in enumerate(bitmap.tolist()) if not used)


def _accumulate_type() -> type:
    """Return the type of the node that adds to a leaf's gradient; torch has no public name for it."""
    with torch.enable_grad():
        node = torch.zeros(1, requires_grad=True).expand(1).grad_fn
    return type(node.next_functions[0][0])  # type: ignore[union-attr] # a leaf that requires grad has one


_ACCUMULATE = _accumulate_type()


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
