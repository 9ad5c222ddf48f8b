"""A model whose steps leave a layer out, another one on every rank; and what looking for that costs the host."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.training import Trainee
from ddptrace.errors import DdptraceError
from ddptrace.reducer.unused import parameters_reached

if TYPE_CHECKING:
    from ddptrace.bench.job import Job
    from ddptrace.bench.training import Workload

WALKS: Final = 20


class Leaving:
    """A model in training that leaves out `left`, the number of a layer, or None."""

    def __init__(self, job: Job, work: Workload, reducer: str, cap_mb: float, *, find: bool) -> None:
        self.trainee = Trainee(job, work, REDUCERS[reducer](cap_mb, find_unused_parameters=find))
        module: Any = self.trainee.model.module
        self.layers = equal_layers(module)
        if not self.layers:
            raise DdptraceError(f"no layer of {work.name} can be left out: they are not alike; measure gpt or mlp")
        self.left: int | None = None
        self._chance = random.Random(job.rank)
        for number, layer in enumerate(self.layers):
            layer.forward = functools.partial(self._forward, number, layer.forward)

    def step(self) -> None:
        """One update with all layers."""
        self.left = None
        self.trainee.step()

    def step_without_one(self) -> None:
        """One update without a layer, which this rank draws for itself."""
        self.left = self._chance.randrange(len(self.layers))
        self.trainee.step()

    def walk_ns(self) -> int:
        """Of the host, after forward: making ready for backward, the walk through the graph included where it is made.
        The best of several. Collective."""
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
    """Of the first list or sequence of two or more layers with the same parameters: each may be left out, since what
    goes in looks like what comes out."""
    for part in model.modules():
        layers = list(part.children()) if isinstance(part, nn.ModuleList | nn.Sequential) else []
        shapes = {tuple(parameter.shape for parameter in layer.parameters()) for layer in layers}
        if len(layers) > 1 and len(shapes) == 1 and shapes != {()}:
            return layers
    return []


def _preparation(model: nn.Module, loss: Tensor) -> Callable[[], object]:
    """What a wrapper's forward does last; again and again it does no harm."""
    if isinstance(model, DistributedDataParallel):
        looked_at = [loss] if model.find_unused_parameters else []
        return lambda: model.reducer.prepare_for_backward(looked_at)
    return lambda: parameters_reached(loss)


def _ns(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin
