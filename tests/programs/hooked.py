"""DDP with a hook that works on the host before it communicates. `hooked.py RUN [--own-profiler FOLDER]`.

`--own-profiler`: the program runs torch.profiler itself and exports to a folder of its own.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

HOST_S = 0.01


def slow_to_send(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
    begin = time.perf_counter()
    while time.perf_counter() - begin < HOST_S:
        pass
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


def main(run: str, own_profiler: str | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddptrace.trace(run):
        model.register_comm_hook(None, slow_to_send)
        profiler = None
        if own_profiler is not None:
            profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
                on_trace_ready=torch.profiler.tensorboard_trace_handler(own_profiler),
            )
            profiler.start()
        for _ in range(8):
            model(torch.randn(256, 512)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if profiler is not None:
                profiler.step()
        if profiler is not None:
            profiler.stop()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3] if len(sys.argv) > 3 else None)
