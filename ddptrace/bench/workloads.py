"""What the benchmarks train: small models for one machine, and the papers' models for a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from ddptrace.bench.experiment import known
from ddptrace.bench.job import Job
from ddptrace.bench.models import Bert, Gpt, Gpt2, Mlp, convnet, resnet50
from ddptrace.bench.strategies import Strategy

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its input. `make()`, called under the same seed everywhere, returns a module whose forward takes
    `batch(generator, size)` and returns the mean loss. `batch_size`: of one rank."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]
    batch_size: int


def _vectors(chance: torch.Generator, size: int) -> Batch:
    return (torch.randn(size, 1024, generator=chance),)


def _tokens(vocabulary: int, context: int) -> Callable[[torch.Generator, int], Batch]:
    """Return a batch of tokens, and for each token the next one."""

    def batch(chance: torch.Generator, size: int) -> Batch:
        tokens = torch.randint(vocabulary, (size, context + 1), generator=chance)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _sentences(chance: torch.Generator, size: int) -> Batch:
    """Return 128 tokens, the sentence (of two) of each, and the token to predict in its place."""
    tokens, targets = torch.randint(30522, (2, size, 128), generator=chance)
    return tokens, torch.arange(128).ge(64).long().expand(size, -1), targets


def _images(side: int, classes: int) -> Callable[[torch.Generator, int], Batch]:
    def batch(chance: torch.Generator, size: int) -> Batch:
        images = torch.randn(size, 3, side, side, generator=chance)
        return images, torch.randint(classes, (size,), generator=chance)

    return batch


WORKLOADS: Final = {
    work.name: work
    for work in (
        Workload("gpt", Gpt, _tokens(256, 64), 4),
        Workload("mlp", Mlp, _vectors, 256),
        Workload("convnet", convnet, _images(32, 10), 4),
        # the models are papers', the sizes of the batches are ours
        Workload("resnet50", resnet50, _images(224, 1000), 32),
        Workload("bert", Bert, _sentences, 8),
        Workload("gpt2-xl", Gpt2, _tokens(50257, 1024), 1),
    )
}


def workload(name: str) -> Workload:
    """Return the workload of this name. Raises: DdptraceError if there is none."""
    known("workload", (name,), WORKLOADS)
    return WORKLOADS[name]


def nbytes(model: nn.Module) -> int:
    """Return the bytes of all gradients, which a step sends once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


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
