"""Sharded models: FSDP2 and tensor parallelism. `origins_sharded.py RUN fsdp|tensor`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ddptrace
from tests.programs.leaving import leave

STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)  # a block
        return x


def sharded(kind: str) -> nn.Module:
    model, mesh = Stack(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        if kind == "fsdp":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind == "fsdp":
        fully_shard(model, mesh=mesh)
    return model


def main(run: str, kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(run):
        for _ in range(STEPS):
            model(torch.randn(4, 16)).pow(2).mean().backward()  # a step
            optimizer.step()
            optimizer.zero_grad()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
