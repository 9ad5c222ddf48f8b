"""Stock DDP in which rank 1 sleeps before its forward in every other step: `late_in_turn.py RUN`."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

LATE_S, LATE_RANK, STEPS = 0.06, 1, 24


def is_late(step: int) -> bool:
    return step % 2 == 1


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(128, 128) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ddptrace.trace(run):
        for step in range(STEPS):
            if dist.get_rank() == LATE_RANK and is_late(step):
                time.sleep(LATE_S)
            model(torch.randn(8, 128)).sum().backward()
            optimizer.step()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
