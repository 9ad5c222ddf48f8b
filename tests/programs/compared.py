"""Stock DDP with four buckets, one of which may take longer on the wire: `compared.py RUN BUCKET EXTRA_MS`."""

from __future__ import annotations

import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

WIRE_S, LAYERS, STEPS, BACKWARD_S = 0.004, 4, 24, 0.002


class Slow(torch.autograd.Function):
    """Passes its input on; its backward takes `BACKWARD_S`."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(BACKWARD_S)
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Slow.apply(self.linear(inputs))
        return out


def main(run: str, slow_bucket: int, extra_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def wire(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        took_s = WIRE_S + (extra_s if bucket.index() == slow_bucket else 0)

        def deliver() -> None:
            time.sleep(took_s)
            future.set_result(bucket.buffer())

        threading.Thread(target=deliver).start()
        return future

    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(LAYERS))), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ddptrace.trace(run):
        model.register_comm_hook(None, wire)
        for _ in range(STEPS):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1e3)
