"""The collectives to measure, as calls on buffers. The size counts the bytes of

all_reduce, broadcast, reduce, send_recv    the tensor
all_gather, gather                          the whole of what is gathered
reduce_scatter, scatter, all_to_all         the whole of what is scattered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ddptrace.bench.job import Job

DTYPE: Final = torch.float32
Call = Callable[[], object]
# torch has renamed these two, and warns of the old names
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Op:
    """`make(job, whole, other)` returns the call. `traced`: its names in a trace. `other`: what a rank holds beside the
    whole, as a share of it ("part": 1/ranks). `rooted`: only rank 0 holds the whole. `copies`: what Gloo allocates in
    addition, as a share of the whole."""

    make: Callable[[Job, Tensor, Tensor], Call]
    traced: tuple[str, ...]
    other: str = "none"
    rooted: bool = False
    copies: float = 0.1

    def holds(self, rank: int, ranks: int) -> tuple[float, float]:
        """Return this rank's two buffers as shares of the size."""
        whole = 0.0 if self.rooted and rank else 1.0
        return whole, {"none": 0.0, "part": 1 / ranks, "whole": 1.0}[self.other]

    def need_ratio(self, rank: int, ranks: int) -> float:
        """Return this rank's memory as a multiple of the size."""
        whole, other = self.holds(rank, ranks)
        return whole + other + self.copies * (whole or 0.1)


def _pair(job: Job, whole: Tensor, other: Tensor) -> Call:
    """Send from each even rank to its odd neighbour. A rank without one does nothing."""
    peer = job.rank ^ 1
    if peer >= job.ranks:
        return lambda: None
    return (lambda: dist.recv(whole, peer)) if job.rank % 2 else (lambda: dist.send(whole, peer))


def _gather(job: Job, whole: Tensor, other: Tensor) -> Call:
    parts = list(whole.chunk(job.ranks)) if job.rank == 0 else None
    return lambda: dist.gather(other, parts, 0)


def _scatter(job: Job, whole: Tensor, other: Tensor) -> Call:
    parts = list(whole.chunk(job.ranks)) if job.rank == 0 else None
    return lambda: dist.scatter(other, parts, 0)


OPS: Final = {
    "all_reduce": Op(lambda job, whole, other: lambda: dist.all_reduce(whole), ("all_reduce",)),
    "all_gather": Op(
        lambda job, whole, other: lambda: _all_gather(whole, other), ("all_gather_into_tensor",), "part", copies=1.1
    ),
    "reduce_scatter": Op(
        lambda job, whole, other: lambda: _reduce_scatter(other, whole), ("reduce_scatter_tensor",), "part", copies=1.1
    ),
    "broadcast": Op(lambda job, whole, other: lambda: dist.broadcast(whole, 0), ("broadcast",)),
    "all_to_all": Op(
        lambda job, whole, other: lambda: dist.all_to_all_single(other, whole), ("all_to_all_single",), "whole"
    ),
    "reduce": Op(lambda job, whole, other: lambda: dist.reduce(whole, 0), ("reduce",)),
    "gather": Op(_gather, ("gather",), "part", rooted=True, copies=1.1),
    "scatter": Op(_scatter, ("scatter",), "part", rooted=True),
    "send_recv": Op(_pair, ("send", "recv")),
}


def prepared(job: Job, op: Op, sizes: Iterable[int]) -> dict[int, Call]:
    """Return the call of each size. All use the front of the same buffers."""
    sizes = list(sizes)
    shares = op.holds(job.rank, job.ranks)
    whole, other = (_filled(job, round(max(sizes) * share) // DTYPE.itemsize) for share in shares)
    return {size: _call(job, op, whole, other, size // DTYPE.itemsize) for size in sizes}


def _call(job: Job, op: Op, whole: Tensor, other: Tensor, numel: int) -> Call:
    part = numel // job.ranks if op.other == "part" else numel
    return op.make(job, whole[:numel], other[:part])


def _filled(job: Job, numel: int) -> Tensor:
    """Return written memory, so that it exists; zeros stay zeros however often they are summed."""
    return torch.empty(numel, dtype=DTYPE, device=job.device).fill_(0)


def divisible(nbytes: int, ranks: int) -> int:
    """Return the size to measure: elements that divide evenly, at least one for each rank."""
    return max(1, nbytes // (DTYPE.itemsize * ranks)) * DTYPE.itemsize * ranks


def refusal(job: Job, call: Call) -> str | None:
    """Return why the backend refuses the call, None if it does not. Collective."""
    try:
        call()
        job.finish()
        mine = None
    except (RuntimeError, ValueError, NotImplementedError) as error:  # what backends raise for an op they lack
        mine = (str(error).splitlines() or [type(error).__name__])[0]
    return next((str(reason) for reason in job.gather(mine) if reason is not None), None)
