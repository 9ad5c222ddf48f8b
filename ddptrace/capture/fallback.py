"""Where the dispatcher tap does not work: the methods of `ProcessGroup`, which Python callers go through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ddptrace.capture.collectives import Collectives
from ddptrace.capture.surface import Patches
from ddptrace.capture.tap import Op

METHODS = {
    # method: (name, positions of input tensors, of output tensors), counted from the first argument after the group
    "allreduce": ("all_reduce", (0,), ()),
    "allreduce_coalesced": ("all_reduce_coalesced", (0,), ()),
    "broadcast": ("broadcast", (0,), ()),
    "reduce": ("reduce", (0,), ()),
    "allgather": ("all_gather", (1,), (0,)),
    "_allgather_base": ("all_gather_into_tensor", (1,), (0,)),
    "reduce_scatter": ("reduce_scatter", (1,), (0,)),
    "_reduce_scatter_base": ("reduce_scatter_tensor", (1,), (0,)),
    "gather": ("gather", (1,), (0,)),
    "scatter": ("scatter", (1,), (0,)),
    "alltoall": ("all_to_all", (1,), (0,)),
    "alltoall_base": ("all_to_all_single", (1,), (0,)),
    "send": ("send", (0,), ()),
    "recv": ("recv", (), (0,)),
    "recv_anysource": ("recv_any_source", (), (0,)),
    "barrier": ("barrier", (), ()),
}


def watch_process_group(patches: Patches, collectives: Collectives) -> None:
    """Wrap every known method of `ProcessGroup` that this torch has."""
    for method, (name, inputs, outputs) in METHODS.items():
        if method in vars(dist.ProcessGroup):
            op = Op(name, None, 0, None, tuple(i + 1 for i in inputs), tuple(i + 1 for i in outputs))
            patches.replace(dist.ProcessGroup, method, functools.partial(_wrap, op=op, collectives=collectives))


def _wrap(original: Callable[..., Any], *, op: Op, collectives: Collectives) -> Callable[..., Any]:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        values = (dist.ProcessGroup.boxed(group), *args, *kwargs.values())
        token = collectives.before(op, values)
        work = original(group, *args, **kwargs)
        if token is not None:
            collectives.after(token, op, values, None if work is None else work.boxed())
        return work

    return method
