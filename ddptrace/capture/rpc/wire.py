"""What an RPC message weighs on the wire, and the stamp by which caller and callee are told to be one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch

from ddptrace.schema import RpcFlag, RpcOp

MAGIC: Final = b"\0ddprpc"
STAMP_NBYTES: Final = 16
OPS: Final = frozenset(RpcOp)
RECOPY_MIN_NBYTES: Final = 8 << 10
"""A view of a storage at least this large, and twice what the view needs, is copied before it is sent."""


class Stamp(NamedTuple):
    call: int
    op: int  # RpcOp
    is_async_execution: bool


def stamped(payload: bytes, stamp: Stamp) -> bytes:
    """`payload` with the call's id behind it. A pickle ends at its own STOP: whoever loads it, traced or not, never
    reads what follows. Equal calls of several callers can be told apart by nothing else that is sent."""
    how = stamp.op | (RpcFlag.ASYNC_EXECUTION << 4 if stamp.is_async_execution else 0)
    return b"".join((payload, MAGIC, bytes((how,)), stamp.call.to_bytes(8, "little")))


def read_stamp(payload: bytes) -> Stamp | None:
    """The stamp at the end of a payload; None where its sender was not traced, or by a ddptrace with ops of its own."""
    how, is_stamped = payload[-9:-8], payload[-STAMP_NBYTES : len(MAGIC) - STAMP_NBYTES] == MAGIC
    if not is_stamped or how[0] & 15 not in OPS:
        return None
    call, later = int.from_bytes(payload[-8:], "little"), how[0] >> 4 & RpcFlag.ASYNC_EXECUTION
    return Stamp(call, RpcOp(how[0] & 15), bool(later))


def wire_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors in one message. TensorPipe sends whole storages, each once, whatever part of it a tensor is; of
    a storage that is mostly not needed it sends a copy of what is."""
    seen: set[int] = set()
    total = 0
    for tensor in tensors:
        for part in _strided(tensor):
            storage, useful = part.untyped_storage(), part.numel() * part.element_size()
            held = storage.nbytes()
            if held >= RECOPY_MIN_NBYTES and held >= 2 * useful:
                total += useful
            elif storage._cdata not in seen:
                seen.add(storage._cdata)
                total += held
    return total


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, in lists, tuples and dicts at any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def gradient_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the gradients that tensors sent in an autograd context would have."""
    return sum(one.numel() * one.element_size() for one in tensors if one.requires_grad)


def _strided(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
