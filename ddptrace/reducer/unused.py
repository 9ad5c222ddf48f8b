"""Which parameters a step did not use: on this rank by a walk through the autograd graph, on all ranks by a bitmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
