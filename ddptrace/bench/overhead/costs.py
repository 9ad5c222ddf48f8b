"""What single instruments cost, from which the share of any step can be added up.

Each is measured as the difference of the same loop with and without a trace, on a Gloo group of one rank that waits for
nobody, best of several: what other programs do can only add.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.job import Job
from ddptrace.bench.traced import recording
from ddptrace.record import Recorder
from ddptrace.render.sheet import Grid
from ddptrace.render.words import duration
from ddptrace.schema import Kind

STEP_NS: Final = 100_000_000
BUCKETS: Final = 25
PARAMETERS: Final = 150
TRIALS: Final = 7
SMALL_NBYTES, STAMPED_NBYTES = 4 << 10, 128 << 10


@dataclass(frozen=True, slots=True)
class Costs:
    """In ns each. `collective`: an asynchronous one, without and with the stamp of its completion; `parameter`: the
    hook that notes when a gradient is ready."""

    record_ns: float
    collective_ns: float
    stamped_collective_ns: float
    parameter_ns: float

    def share(self, collective_ns: float) -> float:
        """Of a step of STEP_NS with BUCKETS collectives and PARAMETERS hooks."""
        return (BUCKETS * collective_ns + PARAMETERS * self.parameter_ns) / STEP_NS

    def grid(self) -> Grid:
        rows = (
            ("one record", duration(self.record_ns)),
            ("one collective, completion not stamped", duration(self.collective_ns)),
            ("one collective, completion stamped", duration(self.stamped_collective_ns)),
            ("one parameter's ready hook", duration(self.parameter_ns)),
        )
        return Grid("What one of each costs", ("instrument", "cost"), rows, __doc__.split("\n\n")[1].replace("\n", " "))

    def words(self) -> str:
        plain, stamped = (100 * self.share(ns) for ns in (self.collective_ns, self.stamped_collective_ns))
        return (
            f"Added up, a step of {duration(STEP_NS)} with {BUCKETS} buckets and {PARAMETERS} parameters pays "
            f"{plain:.2f} % without and {stamped:.2f} % with completion times."
        )


def costs(job: Job) -> Costs:
    """Collective: rank 0 measures, the others keep its traces company."""
    alone = dist.new_group([0], backend="gloo")
    small, stamped = (_collectives(job, alone, nbytes) for nbytes in (SMALL_NBYTES, STAMPED_NBYTES))
    return Costs(record_ns(), small, stamped, _parameters(job, alone))


def record_ns(count: int = 100_000) -> float:
    """Appending one record, the loop around it taken off."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(lambda: Path(folder))
        cost = min(_per_call_ns(lambda: recorder.event(Kind.DONE, 0, 0, 1, 1, 1), count) for _ in range(TRIALS))
        recorder.close()
    return cost - min(_per_call_ns(lambda: None, count) for _ in range(TRIALS))


def _collectives(job: Job, alone: object, nbytes: int, count: int = 200) -> float:
    tensor, works = torch.zeros(nbytes // 4), list[object]()

    def issue() -> None:
        works.append(dist.all_reduce(tensor, group=alone, async_op=True))

    def some() -> float:
        cost = _per_call_ns(issue, count)
        for work in works:
            work.wait()  # type: ignore[attr-defined] # a Work
        works.clear()
        return cost

    return _difference(job, some)


def _parameters(job: Job, alone: object, count: int = 500) -> float:
    if job.rank:
        return _difference(job, lambda: 0.0)
    model = DistributedDataParallel(_Sum(count), process_group=alone, bucket_cap_mb=1000)

    def backward() -> float:
        loss = model()
        begin = time.perf_counter_ns()
        loss.backward()
        return (time.perf_counter_ns() - begin) / count

    return _difference(job, lambda: min(backward() for _ in range(10)))


def _difference(job: Job, measured: Callable[[], float]) -> float:
    """With a trace less without, each the best of several in turn. Collective."""
    plain, traced = [], []
    for _ in range(TRIALS):
        if job.rank == 0:
            plain.append(measured())
        job.meet()
        with recording(job.folder / "runs" / "costs"):
            if job.rank == 0:
                traced.append(measured())
            job.meet()
    return max(0.0, min(traced) - min(plain)) if job.rank == 0 else 0.0


def _per_call_ns(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count


class _Sum(nn.Module):
    """Parameters of one element each, all used once: next to nothing is computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.ones = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.ones)).sum()
