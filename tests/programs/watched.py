"""A DDP training that goes on until it is told to end. `watched.py RUN`: it ends when RUN.end is there, and while
RUN.hold is there rank 1 sleeps before its forward."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

MOST_S = 120


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))), bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Path(f"{run}.{dist.get_rank()}").write_text(str(os.getpid()))
    until_s = time.monotonic() + MOST_S
    with ddptrace.trace(run):
        going = torch.ones(1)
        while going.item():
            time.sleep(0.05)
            while dist.get_rank() == 1 and Path(f"{run}.hold").exists():
                time.sleep(0.05)
            model(torch.randn(32, 128)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            going.fill_(not Path(f"{run}.end").exists() and time.monotonic() < until_s)
            dist.all_reduce(going, dist.ReduceOp.MIN)
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
