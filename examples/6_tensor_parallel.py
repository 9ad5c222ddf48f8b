"""Tensor parallelism: two ranks share every layer, and activations travel instead of gradients.

    torchrun --nproc-per-node 2 examples/6_tensor_parallel.py run/tensor-parallel
    ddptrace analyze run/tensor-parallel

Of a block's first layer each rank has half of the columns, of its second layer half of the rows. So the first needs no
communication in forward, the second sums what the ranks have (an all-reduce of the activations), and in backward it is
the other way round. How much is sent depends on the batch and the width, not on the number of parameters.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ddptrace

STEPS, BATCH, WIDTH, BLOCKS = 6, 32, 256, 2


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
        self.inlet = nn.Linear(WIDTH, WIDTH)  # not shared: both ranks compute the same
        self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.inlet(x))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/tensor-parallel", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same model and the same data on both ranks
    dist.init_process_group("gloo")
    model, mesh = Network(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with ddptrace.trace(out, overwrite=True):
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH)
            nn.functional.mse_loss(model(inputs), inputs.roll(1, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # now every rank has written
    if dist.get_rank() == 0:
        show(out)
    dist.destroy_process_group()
    os._exit(0)  # all is written; Gloo now and then aborts while Python shuts down


def show(out: str) -> None:
    """Calls and bytes of one step on one rank."""
    rows = [row for row in ddptrace.analyze(out).collectives if (row.rank, row.step, row.part) == (0, STEPS - 1, 0)]
    print(f"{'module':<16} {'operation':<14} {'a step':>6} {'bytes each':>12}")
    for (module, op, nbytes), count in Counter((row.module, row.op, row.nbytes) for row in rows).items():
        print(f"{module:<16} {op:<14} {count:>6} {nbytes:>12,}", flush=True)


if __name__ == "__main__":
    main()
