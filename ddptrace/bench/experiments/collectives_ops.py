"""The collectives to measure, as calls on buffers; which sizes, and how often.

Small sizes are measured in batches, large ones as time allows, and none that memory lacks: a benchmark that drives its
machine out of memory measures nothing and takes other programs with it. The size counts the bytes of

all_reduce, broadcast, reduce, send_recv    the tensor
all_gather, gather                          the whole of what is gathered
reduce_scatter, scatter, all_to_all         the whole of what is scattered
"""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.errors import DdptraceError

DTYPE: Final = torch.float32
Call = Callable[[], object]
# torch has renamed these two, and warns of the old names
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

UNITS: Final = {"": 1_000_000, "b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
CELL_BUDGET_NS: Final = 4_000_000_000
"""Time for all repeats of one size. Beyond it they become fewer, down to `ROUNDS_MIN` rounds of one call."""
ROUNDS_MIN: Final = 3
BATCH_NS: Final = 2_000_000
"""Shortest batch: beside it the ranks' different times of leaving the barrier do not count."""
BATCH_MAX: Final = 20
USED_MAX_RATIO: Final = 0.8
"""Share of the available memory to use. The rest is for other programs."""
Claim = tuple[str, int | None, float]
"""The memory's place, its available bytes (None: not known), and a rank's need as a multiple of the size."""


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


def parse_sizes(asked: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of `4kB`, `1MB`, `1GB` or `16` (MB), ascending, each once. Raises: DdptraceError for a text that
    is no size."""
    return tuple(sorted({_nbytes(text) for text in asked}))


def _nbytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    nbytes = round(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if nbytes < 1:
        raise DdptraceError(f"{text!r} is not a size; give bytes as in 4kB,64kB,1MB,1GB (a bare number means MB)")
    return nbytes


def batch(call_ns: int) -> int:
    """Return how many calls in a row are timed together."""
    return max(1, min(BATCH_MAX, -(-BATCH_NS // max(1, call_ns))))


def repeats_for(block_ns: int, asked: Repeats) -> Repeats:
    """Return the repeats as asked if a batch of `block_ns` allows; else fewer steps, no warm-up, then fewer rounds.

    The warm-up is dispensable, since each size was called before.
    """
    most = CELL_BUDGET_NS // max(1, block_ns)
    if asked.rounds * (asked.steps + asked.warmup) <= most:
        return asked
    warmup = asked.warmup if asked.rounds * (1 + asked.warmup) <= most else 0
    steps = max(1, min(asked.steps, most // asked.rounds - warmup))
    rounds = max(min(ROUNDS_MIN, asked.rounds), min(asked.rounds, most // (steps + warmup)))
    return Repeats(rounds, steps, warmup)


def claims(job: Job, need_ratio: float) -> list[Claim]:
    """Return every rank's claim on memory. Collective."""
    return [cast(Claim, claim) for claim in job.gather((*_available(job.device), need_ratio))]


def shortage(nbytes: int, claims: Iterable[Claim]) -> tuple[int, int] | None:
    """Return the bytes needed and available where a size does not fit; None if it fits everywhere. Ranks of one host
    share its memory."""
    shared: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, available, ratio in claims:
        if available is not None:
            shared[place].append((available, ratio))
    for rows in shared.values():
        needed, free = round(nbytes * sum(ratio for _, ratio in rows)), min(available for available, _ in rows)
        if needed > USED_MAX_RATIO * free:
            return needed, free
    return None


def _available(device: torch.device) -> tuple[str, int | None]:
    host = socket.gethostname()
    if device.type == "cuda":
        return f"{host} {device}", int(torch.cuda.mem_get_info(device)[0])
    return host, host_available()


def host_available(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that this process may still take, by the machine and its control group; None if unknown."""
    try:
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        machine = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    limit = _group_available(group)
    return machine if limit is None else min(machine, limit)


def _group_available(group: Path) -> int | None:
    """Return what the control group's limit leaves. Unused cached files count as free."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
    return max(0, limit - used + _count(fields, "inactive_file"))


def _count(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, "0"))
