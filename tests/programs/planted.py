"""DDP whose computation and communication have known times: `planted.py RUN TRUTH [--profile]`.

Backward computes for `BUSY_S` between gradients (matrix products, by the clock); the communication hook's future
completes on another thread after `WIRE_S`. What really happened is written to TRUTH as Unix nanoseconds.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

BUSY_S, WIRE_S, LAYERS, STEPS = 0.02, 0.05, 4, 8
truth: dict[str, list[tuple[int, int]]] = {"compute": [], "comm": []}
matrix = torch.randn(192, 192)


class Busy(torch.autograd.Function):
    """Passes its input on; its backward multiplies matrices for `BUSY_S`."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        begin = time.time_ns()
        while time.time_ns() - begin < BUSY_S * 1e9:
            torch.mm(matrix, matrix)
        truth["compute"].append((begin, time.time_ns()))
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Busy.apply(self.linear(inputs))
        return out


def slow_wire(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
    """The bucket comes back as it went, `WIRE_S` later, from another thread."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    begin = time.time_ns()

    def deliver() -> None:
        time.sleep(WIRE_S)
        truth["comm"].append((begin, time.time_ns()))
        future.set_result(bucket.buffer())

    threading.Thread(target=deliver).start()
    return future


def main(run: str, out: str, profiled: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(LAYERS))), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=4, repeat=1) if profiled else None
    with ddptrace.trace(run, profile=schedule):
        model.register_comm_hook(None, slow_wire)
        for _ in range(STEPS):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
    Path(out).write_text(json.dumps(truth))
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--profile" in sys.argv)
