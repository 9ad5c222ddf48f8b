"""Trains on torch's meta device over its fake backend: `on_meta.py RUN [--profile]`. The nearest to a device that a
machine without one has: the host launches, nothing is computed, and no Work or future of it tells the host anything."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FakeWork
from torch.testing._internal.distributed.fake_pg import FakeStore

import ddptrace

del FakeWork.wait  # what other backends give is a plain Work

STEPS = 8


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = torch.profiler.schedule(wait=2, warmup=1, active=3) if "--profile" in sys.argv else None
    with ddptrace.trace(sys.argv[1], profile=profile):
        ddp = nn.parallel.DistributedDataParallel(model, init_sync=False)
        ddp.register_comm_hook(None, hook)
        ddp(torch.empty(8, 64, device="meta")).sum().backward()  # a second time it would compare what has no data
        optimizer.step()
        for _ in range(STEPS - 1):
            model(torch.empty(8, 64, device="meta")).sum().backward()
            works = [dist.all_reduce(one.grad, async_op=True) for one in model.parameters()]
            for work in works:
                work.wait()
            dist.all_reduce(torch.empty(1 << 16, device="meta"))
            optimizer.step()


main()
