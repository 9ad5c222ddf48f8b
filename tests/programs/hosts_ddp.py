"""DDP of a 25 MB model, enough computation to hide under. `hosts_ddp.py RUN CAP_MB`; RANK and MASTER_ADDR are set."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

WIDTH, LAYERS, STEPS = 1024, 6, 8


def main(run: str, cap_mb: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), bucket_cap_mb=cap_mb
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.randn(512, WIDTH)
    with ddptrace.trace(run, profile=torch.profiler.schedule(wait=2, warmup=1, active=4, repeat=1)):
        for _ in range(STEPS):
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
