"""The size of an RPC message on the wire, and the stamp by which caller and callee are matched to one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch

from ddptrace.schema import RpcFlag, RpcOp

MAGIC: Final = b"\0ddprpc"
STAMP_NBYTES: Final = 16
OPS: Final = frozenset(RpcOp)
RECOPY_MIN_NBYTES: Final = 8 << 10
"""A view is copied before it is sent if its storage is at least this large and twice as large as the view."""


class Stamp(NamedTuple):
    call: int
    op: int  # RpcOp
    is_async_execution: bool


def stamped(payload: bytes, stamp: Stamp) -> bytes:
    """Return `payload` with the call's id behind it. A pickle ends at its STOP: whoever loads it, traced or not, does
    not read what follows. Nothing else in a message distinguishes equal calls of several callers."""
    how = stamp.op | (RpcFlag.ASYNC_EXECUTION << 4 if stamp.is_async_execution else 0)
    return b"".join((payload, MAGIC, bytes((how,)), stamp.call.to_bytes(8, "little")))


def read_stamp(payload: bytes) -> Stamp | None:
    """Return the stamp at the end of a payload; None if its sender was not traced, or by a ddptrace with unknown
    ops."""
    how, is_stamped = payload[-9:-8], payload[-STAMP_NBYTES : len(MAGIC) - STAMP_NBYTES] == MAGIC
    if not is_stamped or how[0] & 15 not in OPS:
        return None
    call, later = int.from_bytes(payload[-8:], "little"), how[0] >> 4 & RpcFlag.ASYNC_EXECUTION
    return Stamp(call, RpcOp(how[0] & 15), bool(later))


def wire_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors in one message. TensorPipe sends each storage once and whole, whatever part of it a
    tensor shows; of a storage that is mostly unused it sends a copy of the used part."""
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
    """Yield the tensors of a value, in lists, tuples and dicts at any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def gradient_nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the gradients that tensors sent in an autograd context would have."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.requires_grad)


def _strided(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
