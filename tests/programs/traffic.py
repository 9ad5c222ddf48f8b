"""Trainings whose traffic is known by hand, a run in OUT for each. `traffic.py OUT`.

The model has (64 * 32 + 32) + (32 * 10 + 10) = 2410 float32 parameters: 9640 bytes of gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

STEPS = 5


class Net(nn.Module):
    """`extra` layers get no gradient."""

    def __init__(self, norm: bool, extra: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self.norm = nn.BatchNorm1d(32, affine=False) if norm else nn.Identity()
        self.unused = nn.ModuleList(nn.Linear(8, 8) for _ in range(extra))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu())


def wrapped(norm: bool = False, extra: int = 0, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Net(norm, extra), **options)


def backward(model: nn.Module) -> torch.Tensor:
    loss = model(torch.randn(16, 64)).pow(2).mean()
    loss.backward()
    return loss.detach()


def train(model: nn.Module, synchronised: str = "s", each_step: Callable[[int], None] = lambda step: None) -> None:
    """`synchronised`: of each backward of a step, "s" or, inside no_sync(), "n"."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for one in synchronised:
            with model.no_sync() if one == "n" else nullcontext():
                backward(model)
        optimizer.step()
        optimizer.zero_grad()
        each_step(step)


def with_closure() -> None:
    model = wrapped()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, max_eval=3, tolerance_grad=0, tolerance_change=0)
    for _ in range(STEPS):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            return backward(model)

        optimizer.step(closure)


def halved() -> None:
    model = wrapped()
    model.register_comm_hook(None, fp16_compress_hook)
    train(model)


def now_and_then(step: int) -> None:
    if step % 2:
        dist.all_reduce(torch.ones(250))


def one_way(step: int) -> None:
    """Rank 0 sends 4000 bytes to rank 1."""
    if dist.get_rank() == 0:
        dist.send(torch.ones(1000), 1)
    else:
        dist.recv(torch.ones(1000), 0)


RUNS: dict[str, Callable[[], None]] = {
    "plain": lambda: train(wrapped(bucket_cap_mb=0.001)),
    "accumulated": lambda: train(wrapped(), "nns"),
    "often": lambda: train(wrapped(), "sss"),
    "never": lambda: train(wrapped(), "nn"),
    "early": lambda: train(wrapped(), "sn"),
    "closure": with_closure,
    "halved": halved,
    "unused": lambda: train(wrapped(norm=True, extra=1, find_unused_parameters=True)),
    "varying": lambda: train(wrapped(), each_step=now_and_then),
    "one_way": lambda: train(wrapped(), each_step=one_way),
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, act in RUNS.items():
        with ddptrace.trace(Path(sys.argv[1]) / name):
            act()
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
