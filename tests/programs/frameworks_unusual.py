"""Trainings that are not one model, one optimizer and one loop, each in a trace of its own below RUN: two DDP models
with two optimizers, a scaler that skips, recomputed activations, a gradient within the loss,
loaders with workers. `frameworks_unusual.py RUN`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import ddptrace
from tests.programs.leaving import leave

ROUNDS = 4


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8))


def gan() -> None:
    """Each round the critic learns, then the generator, through a critic that does not."""
    generator, critic = DistributedDataParallel(net(16)), DistributedDataParallel(net(32))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    c_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    for _ in range(ROUNDS):
        with torch.no_grad():
            made = generator(torch.randn(4, 8))
        critic(torch.cat([made, torch.randn(4, 8)])).pow(2).mean().backward()
        c_optimizer.step()
        c_optimizer.zero_grad()
        critic.module(generator(torch.randn(4, 8))).pow(2).mean().backward()
        g_optimizer.step()
        g_optimizer.zero_grad()
        c_optimizer.zero_grad()


def scaler() -> None:
    """Every second update is skipped."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    made: list[int] = []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    for k in range(ROUNDS):
        loss = model(torch.randn(4, 8)).sum() * (float("inf") if k % 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(made) == ROUNDS // 2


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(net() for _ in range(3))
        self.reentrant = reentrant
        self.ran = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            inputs = checkpoint(self._run, part, inputs, use_reentrant=self.reentrant)
        return inputs

    def _run(self, part: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        self.ran += 1
        out: torch.Tensor = part(inputs)
        return out


def recomputed(reentrant: bool) -> None:
    module = Recomputed(reentrant)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(ROUNDS):
        model(torch.randn(4, 8, requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert module.ran == 2 * 3 * ROUNDS, "nothing was recomputed"


def penalized() -> None:
    """The gradient of the inputs is a part of the loss, through recomputed activations."""
    model = DistributedDataParallel(Recomputed(reentrant=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(ROUNDS):
        inputs = torch.randn(4, 8, requires_grad=True)
        out = model(inputs)
        (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        (out.pow(2).mean() + slope.pow(2).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


class Whole(nn.Module):
    """A model whose forward is the training step of two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(net() for _ in range(2))

    def forward(self, optimizers: list[torch.optim.Optimizer]) -> None:
        for part, optimizer in zip(self.parts, optimizers, strict=True):
            part(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def whole() -> None:
    model = Whole()  # DDP by itself refuses it
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model.parts]
    for _ in range(ROUNDS):
        model(optimizers)


class Transformed(Dataset[torch.Tensor]):
    """Each item passes a transform that is a module, as torchvision's are."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def __len__(self) -> int:
        return 4 * ROUNDS

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = torch.full((8,), float(index))
            for _ in range(20):  # more than the training itself leaves in its records
                out = self.transform(out)
        return out


def loaded(**how: Any) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in DataLoader(Transformed(), batch_size=4, **how):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    yield "gan", gan
    yield "scaler", scaler
    yield "reentrant", lambda: recomputed(True)
    yield "not-reentrant", lambda: recomputed(False)
    yield "penalized", penalized
    yield "whole", whole
    yield "loaded-here", lambda: loaded()
    yield "loaded-by-forks", lambda: loaded(num_workers=2, multiprocessing_context="fork")
    yield "loaded-by-spawned", lambda: loaded(num_workers=1, multiprocessing_context="spawn")


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    for name, case in cases():
        with ddptrace.trace(Path(run) / name):
            case()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
