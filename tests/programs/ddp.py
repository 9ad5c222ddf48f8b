"""A small DDP training under a trace. `ddp.py RUN [--steps N] [--pause-at K] [--profile] [--enter-first]`.

`--pause-at K`: rank 1 says "at K" in RUN.flag after K steps and sleeps inside step K, waiting to be killed.
`--enter-first`: the trace is entered before there is a process group.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pause-at", type=int, default=-1)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--enter-first", action="store_true")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--late-s", type=float, default=0.0, help="rank 1 sleeps so long before each forward")
    options = parser.parse_args()
    torch.set_num_threads(1)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1) if options.profile else None
    if not options.enter_first:
        dist.init_process_group("gloo")
    with ddptrace.trace(options.run, profile=schedule, overwrite=options.overwrite):
        if options.enter_first:
            dist.init_process_group("gloo")
        train(options)
    leave()


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        if dist.get_rank() == 1:
            time.sleep(options.late_s)
        loss = model(torch.randn(32, 256)).pow(2).mean()
        if step == options.pause_at and dist.get_rank() == 1:
            Path(f"{options.run}.flag").write_text(f"at {step}")
            time.sleep(60)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
