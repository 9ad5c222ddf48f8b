"""Small models and loops, which hostile programs train with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.hostile.kept import keep, keep_gradients

WIDTH = 8
STEPS = 5
"""So many that a profiler with a schedule of three steps opens, closes and opens again."""


_meetings = itertools.count()


def join() -> int:
    """Meet the other ranks, where this one has not yet; the number of this one."""
    if not dist.is_initialized():
        number = next(_meetings)
        if not number:
            dist.init_process_group("gloo")
        else:  # torch would find what it has left in the store, and call ranks where they are no more
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store = dist.PrefixStore(f"meeting {number}", store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    return dist.get_rank()


def network(*, layers: int = 2) -> nn.Sequential:
    """The same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        inner = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        return nn.Sequential(*inner, nn.Linear(WIDTH, 2))


class CallsSuper(nn.Module):
    """Overrides `__call__`, as a few libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().__call__(inputs) * 2  # type: ignore[no-any-return]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)  # type: ignore[no-any-return]


def ddp(module: nn.Module | None = None, **options: Any) -> DistributedDataParallel:
    """On several buckets, unless `options` say otherwise."""
    join()
    return DistributedDataParallel(network() if module is None else module, **{"bucket_cap_mb": 0.0001, **options})


def batch(size: int = 4) -> torch.Tensor:
    return torch.randn(size, WIDTH)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(batch()).pow(2).mean()  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, count: int = STEPS) -> Iterator[int]:
    """Yields in the middle of each step, after its backward."""
    optimizer = sgd(model) if optimizer is None else optimizer
    for step in range(count):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        keep(loss)
        yield step
        optimizer.step()
        keep_gradients(model)
    keep(model)


def train(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, count: int = STEPS
) -> nn.Module:
    model = network() if model is None else model
    for _ in steps(model, optimizer, count):
        pass
    return model


def keep_error(action: Callable[..., object], *args: Any, **kwargs: Any) -> BaseException | None:
    """Note what `action` raises, or that it raises nothing."""
    try:
        action(*args, **kwargs)
    except BaseException as error:
        keep(f"{type(error).__name__}: {str(error)[:200]}")
        return error
    keep("no error")
    return None
