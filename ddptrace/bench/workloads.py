"""What is trained in the data-parallel benchmarks: small ones for this machine, papers' for a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from ddptrace.bench.asked import known
from ddptrace.bench.models import Gpt, Mlp, convnet
from ddptrace.bench.paper_models import Bert, Gpt2, resnet50
from ddptrace.bench.training import Workload

Batch = tuple[Tensor, ...]


def _vectors(chance: torch.Generator, size: int) -> Batch:
    return (torch.randn(size, 1024, generator=chance),)


def _tokens(vocabulary: int, context: int) -> Callable[[torch.Generator, int], Batch]:
    """Tokens, and for each the one that follows it."""

    def batch(chance: torch.Generator, size: int) -> Batch:
        tokens = torch.randint(vocabulary, (size, context + 1), generator=chance)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _sentences(chance: torch.Generator, size: int) -> Batch:
    """128 tokens, which of two sentences each belongs to, and what is to be predicted in its place."""
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
    """Raises DdptraceError for a name that is none."""
    known("workload", (name,), WORKLOADS)
    return WORKLOADS[name]


def nbytes(model: nn.Module) -> int:
    """Of all gradients, as they are sent once a step."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
