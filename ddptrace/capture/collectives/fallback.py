"""Where the dispatcher tap does not work: the methods of `ProcessGroup`, which Python callers go through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.tap import Op
from ddptrace.capture.surface import Patches, Surface

BLIND_SPOT: Final = (
    "collectives that C++ issues: the buckets and buffers of DistributedDataParallel, functional collectives, DTensor, "
    "compiled code (the dispatcher tap, which sees them, does not work with this torch)"
)

METHODS: Final = {
    # method: (name, position of what is sent or changed in place, of what is received), after the group
    "allreduce": ("all_reduce", 0, None),
    "allreduce_coalesced": ("all_reduce_coalesced", 0, None),
    "broadcast": ("broadcast", 0, None),
    "reduce": ("reduce", 0, None),
    "allgather": ("all_gather", 1, 0),
    "allgather_coalesced": ("all_gather_coalesced", 1, 0),
    "_allgather_base": ("all_gather_into_tensor", 1, 0),
    "all_gather_single": ("all_gather_into_tensor", 1, 0),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1, 0),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1, 0),
    "reduce_scatter": ("reduce_scatter", 1, 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 1, 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", 1, 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 1, 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 1, 0),
    "gather": ("gather", 1, 0),
    "scatter": ("scatter", 1, 0),
    "alltoall": ("all_to_all", 1, 0),
    "alltoall_base": ("all_to_all_single", 1, 0),
    "all_to_all_single": ("all_to_all_single", 1, 0),
    "send": ("send", 0, None),
    "recv": ("recv", None, 0),
    "recv_anysource": ("recv_any_source", None, 0),
    "barrier": ("barrier", None, None),
    "monitored_barrier": ("monitored_barrier", None, None),
}
"""Torch has renamed some; each version has its own."""

PEERS: Final = {"send": 1, "recv": 1, "broadcast": 1, "reduce": 1, "gather": 2, "scatter": 2}
"""Position of the rank that a method sends to or receives from, or of its root or the options that hold it."""
PEER_NAMES: Final = ("dstRank", "srcRank", "root", "opts")
UNKNOWN: Final = -1

GROUP, SENT, RECEIVED, IS_ASYNC, PEER = range(5)
"""Where things stand in what is told of a call, however it was written."""


def watch_process_group(patches: Patches, collectives: Collectives, surface: Surface) -> None:
    """Wrap every known method of `ProcessGroup` that this torch has. `surface`: that of `collectives`."""
    for method, told in METHODS.items():
        if method in vars(dist.ProcessGroup):
            make = functools.partial(_wrap, told=told, collectives=collectives, surface=surface)
            patches.replace(dist.ProcessGroup, method, make)


def _wrap(
    original: Callable[..., Any],
    *,
    told: tuple[str, int | None, int | None],
    collectives: Collectives,
    surface: Surface,
) -> Callable[..., Any]:
    name, sent, received = told
    at = PEERS.get(name)
    op = Op(name, None, GROUP, IS_ASYNC, (SENT,), (RECEIVED,), None if at is None else PEER)

    def read(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return (
            dist.ProcessGroup.boxed(group),
            _tensors(args, kwargs, sent, is_output=False),
            _tensors(args, kwargs, received, is_output=sent is not None),
            _is_async(args, kwargs),
            UNKNOWN if at is None else _peer(args, kwargs, at),
        )

    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        values = surface.call(read, group, args, kwargs) if surface.live else None
        token = None if values is None else collectives.before(op, values)
        work = original(group, *args, **kwargs)
        if token is not None and values is not None:
            collectives.after(token, op, values, surface.call(_boxed, work))
        return work

    return method


def _boxed(work: Any) -> Any:
    return None if work is None else work.boxed()


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any], position: int | None, *, is_output: bool) -> Any:
    """By position, or by name: "output_tensors" and "inputTensor", or plainly "tensors" where there is but one."""
    if position is None:
        return ()
    if position < len(args):
        return args[position]
    named = [value for name, value in kwargs.items() if name.startswith("output") == is_output]
    return [value for value in named if isinstance(value, list | tuple | Tensor)]


def _is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """As the options say, which come last where they are given."""
    options = kwargs.get("opts", args[-1] if args else None)
    return bool(getattr(options, "asyncOp", True))


def _peer(args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> int:
    """A rank in the group: as it is given, or in options, whose root is 0 where they are left out."""
    named = next((kwargs[name] for name in PEER_NAMES if name in kwargs), 0)
    given = args[position] if position < len(args) else named
    rank = getattr(given, "rootRank", given)
    return rank if isinstance(rank, int) else UNKNOWN
