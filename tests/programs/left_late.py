"""DDP whose all-reduce keeps a thread of rank 0's Gloo busy after DDP goes on. `left_late.py RUN LEFT_S ACTIVE`.

LEFT_S: for how long. ACTIVE: steps of the profiler's window. Training takes STEPS steps.
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

STEPS, BEFORE = 8, 2


def main(run: str, left_s: float, active: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def send(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
        if dist.get_rank() == 1:
            time.sleep(0.02)  # so that rank 0's is under way when it gets its callbacks
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        sent = future.then(lambda done: done.value()[0])
        if dist.get_rank() == 0:
            future.add_done_callback(lambda _: time.sleep(left_s))
        return sent

    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, send)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.profiler.schedule(wait=BEFORE - 1, warmup=1, active=active, repeat=1)
    with ddptrace.trace(run, profile=schedule):
        for _ in range(STEPS):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
