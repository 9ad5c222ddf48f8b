"""Rank 0's values to every rank: parameters once, buffers before each forward that follows a synchronised one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ddptrace.reducer.peers import Peers

CHUNK_NBYTES = 250 * 1024 * 1024
"""Bytes of one message, as in torch: flattening takes as much memory on top."""


Message = tuple[list[Tensor], Tensor]
"""Tensors of one kind, and all of them in one flat tensor."""


def messages_of(tensors: Iterable[Tensor]) -> list[Message]:
    """Flatten many tensors into few messages."""
    with torch.no_grad():
        return [_flattened(chunk) for chunk in _chunks(tensors)]


@torch.no_grad()
def take_from_first(peers: Peers, messages: Iterable[Message], what: str) -> None:
    """Overwrite the messages' tensors with rank 0's. `what`: the values, for the error message."""
    sent = [(chunk, flat, _broadcast(peers, flat)) for chunk, flat in messages]
    for chunk, flat, work in sent:
        peers.wait(work, what)
        if peers.rank != 0:
            torch._foreach_copy_(chunk, _unflatten_dense_tensors(flat, chunk))


def order_of_first(peers: Peers, order: list[int], device: torch.device) -> list[int]:
    """Return rank 0's order of parameter indices. Collective."""
    agreed = torch.tensor(order, dtype=torch.int64, device=device)
    peers.wait(_broadcast(peers, agreed), "rank 0's order of gradients")
    return [int(index) for index in agreed.tolist()]


def _chunks(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors of one kind, in their order; a chunk is full at `CHUNK_NBYTES`."""
    full: list[list[Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    nbytes: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for tensor in tensors:
        kind = tensor.dtype, tensor.device
        filling[kind].append(tensor.data)  # what a forward saved of it counts as unchanged, as with torch's wrapper
        nbytes[kind] += tensor.numel() * tensor.element_size()
        if nbytes[kind] >= CHUNK_NBYTES:
            full.append(filling.pop(kind))
            nbytes[kind] = 0
    return full + list(filling.values())


def _flattened(chunk: list[Tensor]) -> Message:
    return chunk, _flatten_dense_tensors(chunk)


def _broadcast(peers: Peers, tensor: Tensor) -> dist.Work:
    work = dist.broadcast(tensor, dist.get_global_rank(peers.group, 0), group=peers.group, async_op=True)
    return cast("dist.Work", work)
