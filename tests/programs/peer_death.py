"""Rank 1 dies in the middle of training; rank 0's next collective fails. `peer_death.py FOLDER ddp|sync`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.rpc_workers import fork_workers

STEPS = 3
N = 1 << 16


def by_ddp() -> None:
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2 * STEPS):
        die(step)
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def by_sync() -> None:
    for step in range(2 * STEPS):
        die(step)
        dist.all_reduce(torch.ones(N))


def die(step: int) -> None:
    if step == STEPS and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


WAYS = {"ddp": by_ddp, "sync": by_sync}


def main(rank: int) -> None:
    folder, way = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=2)
    try:
        with ddptrace.trace(folder / "run"):
            WAYS[way]()
    except RuntimeError as error:
        print("told", "onnection" in str(error))


if __name__ == "__main__":
    print(*fork_workers(2, main))
