"""FSDP2 on hosts with a slow link. `hosts_fsdp.py RUNS CASE...`: each case's trace goes to RUNS/CASE; RANK and
MASTER_ADDR are set.

demand: as `fully_shard` does by itself on CPU, where the host waits for each gather at once. ahead: gathered
asynchronously, one unit ahead in forward too. kept: as ahead, and parameters stay after forward. large: as ahead, with
one block eight times as large. lone: the root is the only unit.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import ddptrace
from tests.programs.leaving import leave

WIDTH, BLOCKS, BATCH, STEPS = 512, 4, 512, 5


class Block(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def sharded(case: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(8 * WIDTH if case == "large" and at == 2 else WIDTH) for at in range(BLOCKS)))
    for block in model if case != "lone" else ():
        fully_shard(block, reshard_after_forward=case != "kept")
    fully_shard(model)
    if case in ("ahead", "kept", "large"):
        model._set_unshard_async_op(True)
        for block, following in pairwise(model):
            block.set_modules_to_forward_prefetch([following])
    return model


def trained(case: str, run: Path) -> None:
    model = sharded(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.randn(BATCH, WIDTH)
    with ddptrace.trace(run):
        for _ in range(STEPS):
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(runs: str, *cases: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        trained(case, Path(runs) / case)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
