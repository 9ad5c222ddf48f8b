"""Collectives of many sizes, queued on two groups, with the program's own profiler over them. `linked.py RUN`.

The profiler records shapes, which ddptrace does not use: a witness of which of Gloo's ranges carried out which call.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

ROUNDS = 3


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()


def communicate(pair: dist.ProcessGroup, round_number: int) -> None:
    """Every tensor of a round has a size of its own."""
    sizes = iter(range(1000 * (round_number + 1), 1000 * (round_number + 2), 7))
    queued = [torch.ones(next(sizes)) for _ in range(24)]
    works = [dist.all_reduce(one, group=pair if k % 3 else None, async_op=True) for k, one in enumerate(queued)]
    for work in works:
        work.wait()
    dist.broadcast(torch.ones(next(sizes)), src=0)
    scattered = torch.ones(next(sizes))
    dist.reduce_scatter_tensor(scattered, torch.ones(2 * scattered.numel()))  # Gloo gives it no future: it has no stamp
    there, back = torch.ones(next(sizes)), torch.ones(next(sizes))
    if dist.get_rank() == 0:
        dist.send(there, 1)
        dist.recv(back, 1)
    else:
        dist.recv(there, 0)
        dist.send(back, 0)


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    layers = [nn.Linear(64 + 4 * k, 64 + 4 * (k + 1)) for k in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(run):
        for _ in range(3):
            train(model, optimizer)
            communicate(pair, 9)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            for k in range(ROUNDS):
                train(model, optimizer)
                communicate(pair, k)
        profiler.export_chrome_trace(str(Path(run).parent / f"own-{dist.get_rank()}.json"))
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
