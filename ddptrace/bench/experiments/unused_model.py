"""A model whose steps leave a layer out, another one on each rank, and what a trace shows of looking for it."""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.analysis.result import Result
from ddptrace.bench.job import Job
from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.workloads import Trainee, Workload
from ddptrace.errors import DdptraceError
from ddptrace.reducer.unused import parameters_reached

WALKS: Final = 20
ENTRY_NBYTES: Final = 4
"""Bytes of an entry of the bitmap: both reducers send an int32 for each parameter."""


class Leaving:
    """A model in training that leaves out `left`: the number of a layer, or None."""

    def __init__(self, job: Job, work: Workload, reducer: str, cap_mb: float, *, find: bool) -> None:
        self.trainee = Trainee(job, work, REDUCERS[reducer](cap_mb, find_unused_parameters=find))
        module: Any = self.trainee.model.module
        self.layers = equal_layers(module)
        if not self.layers:
            raise DdptraceError(f"no layer of {work.name} can be left out, since its layers differ: measure gpt or mlp")
        self.left: int | None = None
        self._chance = random.Random(job.rank)
        for number, layer in enumerate(self.layers):
            layer.forward = functools.partial(self._forward, number, layer.forward)

    def step(self) -> None:
        """Update once with all layers."""
        self.left = None
        self.trainee.step()

    def step_without_one(self) -> None:
        """Update once without a layer, which each rank draws at random."""
        self.left = self._chance.randrange(len(self.layers))
        self.trainee.step()

    def walk_ns(self) -> int:
        """Return the ns that the host needs after forward to prepare for backward, with the walk through the graph if
        it is on. The best of several. Collective."""
        self.left = None
        model, loss = self.trainee.model, self.trainee.model(*self.trainee.batch)
        prepare = _preparation(model, loss)
        cost = min(_ns(prepare) for _ in range(WALKS))
        loss.backward()
        self.trainee.optimizer.zero_grad()
        return cost

    def _forward(self, number: int, forward: Callable[..., Any], inputs: Any, *more: Any, **named: Any) -> Any:
        return inputs if number == self.left else forward(inputs, *more, **named)


def equal_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the first list of two or more with equal parameters. Each may be left out, since its input
    has the shape of its output."""
    for part in model.modules():
        layers = list(part.children()) if isinstance(part, nn.ModuleList | nn.Sequential) else []
        shapes = {tuple(parameter.shape for parameter in layer.parameters()) for layer in layers}
        if len(layers) > 1 and len(shapes) == 1 and shapes != {()}:
            return layers
    return []


def _preparation(model: nn.Module, loss: Tensor) -> Callable[[], object]:
    """Return what a wrapper's forward does last. Repeating it does no harm."""
    if isinstance(model, DistributedDataParallel):
        looked_at = [loss] if model.find_unused_parameters else []
        return lambda: model.reducer.prepare_for_backward(looked_at)
    return lambda: parameters_reached(loss)


def _ns(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin


@dataclass(frozen=True, slots=True)
class Facts:
    """What a traced run shows. `bitmaps`: number of all-reduces of a bitmap in the profiled steps of all ranks.
    `bitmap_ns`: mean execution of one; None if none was seen. `buckets`: the parameters of each on rank 0, in the order
    of sending."""

    bitmaps: int
    bitmap_ns: float | None
    buckets: tuple[tuple[str, ...], ...]


def facts(result: Result, parameters: int) -> Facts:
    """Return the facts of a traced run. `parameters`: number of the model's."""
    profiled = {(row.rank, row.step) for row in result.steps if row.profiled}
    bitmaps = [
        row
        for row in result.collectives
        if row.bucket is None
        and not row.part
        and (row.rank, row.step) in profiled
        and row.nbytes == ENTRY_NBYTES * parameters
        and "int" in row.dtype
    ]
    times = [row.comm_ns for row in bitmaps if row.comm_ns is not None]
    buckets = {row.index: row.parameters for row in result.buckets if row.rank == 0}
    ordered = tuple(names for _, names in sorted(buckets.items()))
    return Facts(len(bitmaps), statistics.fmean(times) if times else None, ordered)
