"""Does a larger batch make DistributedDataParallel send more? Three batch sizes, and the bytes of a step of each.

    torchrun --nproc-per-node 2 examples/8_traffic_ddp_batch_size.py run/batch-size
    ddptrace traffic run/batch-size/64

It does not: what travels are the gradients, which have the size of the parameters, once per step. A larger batch means
more samples for the same bytes, so that communication weighs less.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace

BATCHES, STEPS, WIDTH = (16, 64, 256), 6, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/batch-size", type=Path, help="folder for a run of each batch")
    out: Path = parser.parse_args().out

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for batch in BATCHES:
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )
        model = DistributedDataParallel(network, bucket_cap_mb=1)
        with ddptrace.trace(out / str(batch), overwrite=True):
            train(model, batch)
    dist.barrier()  # now every rank has written
    if dist.get_rank() == 0:
        show(out)
    dist.destroy_process_group()
    os._exit(0)  # all is written; stock Gloo DDP now and then aborts while Python shuts down


def train(model: nn.Module, batch: int) -> None:
    """Learn the sum of the inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        inputs = torch.randn(batch, WIDTH)
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()


def show(out: Path) -> None:
    """Per step and rank: what went in, what the parameters weigh, what the collectives of the gradients carried."""
    print(f"{'batch':>6} {'input bytes':>12} {'parameters':>12} {'sent per step':>14}")
    for batch in BATCHES:
        rows = [row for row in ddptrace.analyze(out / str(batch)).gradient_traffic if row.step > 0]
        sent = " or ".join(f"{nbytes:,}" for nbytes in sorted({row.nbytes or 0 for row in rows}))
        print(f"{batch:>6} {batch * WIDTH * 4:>12,} {rows[0].gradient_nbytes:>12,} {sent:>14}", flush=True)


if __name__ == "__main__":
    main()
