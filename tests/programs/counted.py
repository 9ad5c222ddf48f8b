"""Stock DDP and hand-written collectives under a profiler window. `counted.py RUN`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    torch.manual_seed(0)
    layers = [nn.Linear(128, 128) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.BatchNorm1d(128)), bucket_cap_mb=0.15)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=4, repeat=1)
    with ddptrace.trace(run, profile=schedule):
        for _ in range(9):
            model(torch.randn(32, 128)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            metric = torch.ones(3)
            dist.all_reduce(metric)
            work = dist.all_reduce(torch.ones(50_000), group=pair, async_op=True)
            dist.all_gather([torch.empty(3) for _ in range(2)], metric)
            work.wait()
            other = 1 - dist.get_rank()
            requests = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, metric, other), dist.P2POp(dist.irecv, torch.empty(3), other)]
            )
            for request in requests:
                request.wait()
            dist.broadcast_object_list([{"step": 1}], src=0)
            dist.barrier()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
