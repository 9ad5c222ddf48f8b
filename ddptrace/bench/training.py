"""A model in training, as every data-parallel benchmark runs it: forward, backward, what the strategy adds, update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ddptrace.bench.job import Job


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and what it is fed. `make()`, called under the same seed everywhere, gives a module whose forward takes
    `batch(generator, size)` and returns the mean loss. `batch_size`: of one rank."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], tuple[Tensor, ...]]
    batch_size: int


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to reduce gradients. `wrap` puts it around a module; `finish(wrapped)` is what the program itself has to do
    after backward, nothing where the wrapper does all."""

    name: str
    wrap: Callable[[nn.Module], nn.Module]
    finish: Callable[[nn.Module], None] = field(default=lambda wrapped: None)


class Trainee:
    """One model of a workload under one strategy. `step()` is one update, always with the same batch."""

    def __init__(self, job: Job, workload: Workload, strategy: Strategy) -> None:
        torch.manual_seed(0)
        self.model = strategy.wrap(workload.make().to(job.device))
        self._finish = strategy.finish
        chance = torch.Generator().manual_seed(1 + job.rank)
        self.batch = tuple(part.to(job.device) for part in workload.batch(chance, workload.batch_size))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.model(*self.batch).backward()
        self._finish(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
