"""The witness of the matrix's bytes: a dispatch mode, which sees the same operators by another way than the tap."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.matrix_operations import flat

OPERATORS = {
    "allreduce_": ("all_reduce", 0, None, None),
    "allreduce_coalesced_": ("all_reduce_coalesced", 0, None, None),
    "broadcast_": ("broadcast", 0, None, 2),
    "reduce_": ("reduce", 0, None, 3),
    "allgather_": ("all_gather", 1, 0, None),
    "_allgather_base_": ("all_gather_into_tensor", 1, 0, None),
    "allgather_coalesced_": ("all_gather_coalesced", 1, 0, None),
    "allgather_into_tensor_coalesced_": ("all_gather_into_tensor_coalesced", 1, 0, None),
    "reduce_scatter_": ("reduce_scatter", 1, 0, None),
    "_reduce_scatter_base_": ("reduce_scatter_tensor", 1, 0, None),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor_coalesced", 1, 0, None),
    "gather_": ("gather", 1, 0, 3),
    "scatter_": ("scatter", 1, 0, 3),
    "alltoall_": ("all_to_all", 1, 0, None),
    "alltoall_base_": ("all_to_all_single", 1, 0, None),
    "send": ("send", 0, None, 2),
    "recv_": ("recv", None, 0, 2),
    "recv_any_source_": ("recv_any_source", None, 0, None),
    "barrier": ("barrier", None, None, None),
    "monitored_barrier_": ("monitored_barrier", None, None, None),
}
"""By c10d operator: the name it is recorded by, and which of its arguments hold the bytes in and the bytes out.

The fourth is which of its arguments is the rank that it sends to or receives from, or its root.

Bytes in are those of the tensors that a rank hands over: what it sends, what is reduced, what is overwritten in place,
on every rank of the group. Bytes out are those of the tensors that only receive. Of each tensor numel × element size
count, so a view counts what it shows and an empty tensor nothing; of a sparse one its indices and values.

    all_reduce, broadcast, reduce       in: the tensor, at the root and elsewhere      out: 0
    all_gather                          in: the own tensor                             out: the whole list
    reduce_scatter                      in: the whole list                             out: the own tensor
    gather                              in: the own tensor                             out: the list at the root, else 0
    scatter                             in: the list at the root, else 0               out: the own tensor
    all_to_all                          in: all that leaves, the own part too          out: all that arrives
    send; recv                          in: the tensor; 0                              out: 0; the tensor
    barrier                             in: 0                                          out: 0
"""


class Counting(TorchDispatchMode):
    """`seen`: of every c10d operator that succeeded its recorded name, bytes in, bytes out, dtype, name of the group,
    and global rank of the peer or root (None without one)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int, str, str, int | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d" and name in OPERATORS:
            self._note(name, args)
        return out

    def _note(self, name: str, args: Any) -> None:
        recorded, sent, received, peer = OPERATORS[name]
        into, out = ([] if at is None else flat(args[at]) for at in (sent, received))
        group = next(found for arg in args if (found := unboxed(arg)) is not None)
        dtype = next((str(one.dtype).removeprefix("torch.") for one in [*into, *out]), "")
        other = None if peer is None else dist.get_process_group_ranks(group)[args[peer]]
        self.seen.append((recorded, sum(map(nbytes, into)), sum(map(nbytes, out)), dtype, group.group_name, other))


def nbytes(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        return nbytes(tensor._indices()) + nbytes(tensor._values())
    return tensor.numel() * tensor.element_size()


def unboxed(arg: Any) -> Any:
    """The process group in a boxed argument."""
    try:
        return dist.ProcessGroup.unbox(arg) if isinstance(arg, torch.ScriptObject) else None
    except RuntimeError:
        return None
