"""Ranks of which one may be late: `late.py RUN PART [--ms MS] [--steps N] [--rank R]`.

PART: data, forward, backward, optimizer, collection (of garbage, after the step), or nothing. A rank works little and
sleeps the rest, so that none of them has to wait for a processor: a late one sleeps longer.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ddptrace
from tests.programs.leaving import leave

LAYERS, WIDTH = 4, 256


class Late:
    """Sleeps where this rank is to be late."""

    part = "nothing"
    seconds = 0.0

    @classmethod
    def at(cls, part: str) -> None:
        if part == cls.part:
            time.sleep(cls.seconds)


class Rest(torch.autograd.Function):
    """Passes on what it is given, after a while."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(0.002)
        return gradient


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        Late.at("forward")
        for at, layer in enumerate(self.layers):
            inputs = torch.relu(layer(Rest.apply(inputs)))
            if at == LAYERS // 2:
                inputs = LateBackward.apply(inputs)
        return inputs


class LateBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Late.at("backward")
        return gradient


class Rows(Dataset[torch.Tensor]):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        Late.at("data")
        return torch.full((8, WIDTH), index / self.steps)


class Sgd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        Late.at("optimizer")
        return super().step(closure)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("part")
    parser.add_argument("--ms", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rank", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == options.rank:
        Late.part, Late.seconds = options.part, options.ms / 1e3
    train(options.run, options.steps)
    leave()


def train(run: str, steps: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.3)
    optimizer = Sgd(model.parameters(), lr=1e-3)
    with ddptrace.trace(run):
        for rows in DataLoader(Rows(steps), batch_size=None):
            model(rows).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if Late.part == "collection":  # some 20 ms: what torch itself holds is much
                gc.collect()


if __name__ == "__main__":
    main()
