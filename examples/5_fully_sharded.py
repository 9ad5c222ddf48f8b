"""Fully sharded data parallelism (FSDP2): which module sends how much, and when.

    torchrun --nproc-per-node 2 examples/5_fully_sharded.py run/fully-sharded
    ddptrace analyze run/fully-sharded

Each rank keeps a half of every parameter. A block's halves are put together before its forward, thrown away, put
together again before its backward, and its gradients are summed and split: two all-gathers and a reduce-scatter a step.
What belongs to no block is gathered once, since backward needs it right away. The table shows it by module.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import ddptrace

STEPS, BATCH, WIDTH, BLOCKS = 6, 32, 256, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return out


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/fully-sharded", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = Network()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)  # what is left: the head
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ddptrace.trace(out, overwrite=True):
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH)
            nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long()).backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # now every rank has written
    if dist.get_rank() == 0:
        show(out)
    dist.destroy_process_group()
    os._exit(0)  # all is written; Gloo now and then aborts while Python shuts down


def show(out: str) -> None:
    """Calls and bytes of one step on one rank, by module."""
    rows = [row for row in ddptrace.analyze(out).collectives if (row.rank, row.step, row.part) == (0, STEPS - 1, 0)]
    calls = Counter((row.module, row.op, row.nbytes) for row in rows)
    print(f"{'module':<12} {'operation':<24} {'a step':>6} {'bytes each':>12}")
    for (module, op, nbytes), count in calls.items():
        print(f"{module:<12} {op:<24} {count:>6} {nbytes:>12,}", flush=True)


if __name__ == "__main__":
    main()
