"""The fallback if the dispatcher tap does not work with this torch: wrap the methods of `ProcessGroup`, through which
Python callers go."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.surface import Patches, Surface
from ddptrace.ops import BY_METHOD, Argument, Op

PEER_NAMES: Final = ("dstRank", "srcRank", "root", "opts")
UNKNOWN: Final = -1
SENDING: Final = (Argument.TENSORS, Argument.INPUT)

GROUP, SENT, RECEIVED, IS_ASYNC, PEER = range(5)
"""Positions in what `read` returns of a call, whichever way the call was written."""


def watch_process_group(patches: Patches, collectives: Collectives, surface: Surface) -> None:
    """Wrap every method of `ProcessGroup` that `ops.py` declares and this torch has. `surface`: that of
    `collectives`."""
    for method, op in BY_METHOD.items():
        if method in vars(dist.ProcessGroup):
            make = functools.partial(_wrap, op=op, collectives=collectives, surface=surface)
            patches.replace(dist.ProcessGroup, method, make)


def _wrap(original: Callable[..., Any], *, op: Op, collectives: Collectives, surface: Surface) -> Callable[..., Any]:
    sent, received, peer = (_position(op, *kinds) for kinds in (SENDING, (Argument.OUTPUT,), (Argument.PEER,)))
    operator = Operator(op.name, None, GROUP, IS_ASYNC, (SENT,), (RECEIVED,), None if peer is None else PEER)

    def read(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return (
            dist.ProcessGroup.boxed(group),
            _tensors(args, kwargs, sent, is_output=False),
            _tensors(args, kwargs, received, is_output=sent is not None),
            _is_async(args, kwargs),
            UNKNOWN if peer is None else _peer(args, kwargs, peer),
        )

    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        values = surface.call(read, group, args, kwargs) if surface.live else None
        token = None if values is None else collectives.before(operator, values)
        work = original(group, *args, **kwargs)
        if token is not None and values is not None:
            collectives.after(token, operator, values, surface.call(_boxed, work))
        return work

    return method


def _position(op: Op, *kinds: Argument) -> int | None:
    """Return where a method of the operation takes one of these, None where it takes none of them."""
    arguments = op.family.arguments if op.arguments is None else op.arguments
    return next((at for at, argument in enumerate(arguments) if argument in kinds), None)


def _boxed(work: Any) -> Any:
    return None if work is None else work.boxed()


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any], position: int | None, *, is_output: bool) -> Any:
    """Return the argument at this position, or by name: "output_tensors", "inputTensor", or plainly "tensors"."""
    if position is None:
        return ()
    if position < len(args):
        return args[position]
    named = [value for name, value in kwargs.items() if name.startswith("output") == is_output]
    return [value for value in named if isinstance(value, list | tuple | Tensor)]


def _is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Read it from the options, which come last if they are given."""
    options = kwargs.get("opts", args[-1] if args else None)
    return bool(getattr(options, "asyncOp", True))


def _peer(args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> int:
    """Return the rank in the group: the argument itself, or the root in the options (0 if they are left out)."""
    named = next((kwargs[name] for name in PEER_NAMES if name in kwargs), 0)
    given = args[position] if position < len(args) else named
    rank = getattr(given, "rootRank", given)
    return rank if isinstance(rank, int) else UNKNOWN
