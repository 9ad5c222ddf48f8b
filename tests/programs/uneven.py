"""Two ranks in a profiler window: `uneven.py RUN CAUSE`.

CAUSE "compute": rank 1 computes three times as long; "buffers": a model of many BatchNorms, whose buffers DDP sends
before each forward; "nothing": both ranks compute alike, and no buffer is sent.

What computes is an operator that sleeps, so that no rank waits for a processor.
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

STEPS, WIDTH, NORMS = 10, 16, 200
COMPUTE_S = 0.03

LIBRARY = torch.library.Library("uneven", "DEF")
LIBRARY.define("compute(Tensor inputs, float seconds) -> Tensor")


def compute(inputs: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return inputs.clone()


class Net(nn.Module):
    """Of its norms it uses none: DDP sends their buffers all the same."""

    def __init__(self, seconds: float, norms: int) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH, affine=False) for _ in range(norms))
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(torch.ops.uneven.compute(inputs, self.seconds))
        return outputs


def main() -> None:
    run, cause = sys.argv[1:]
    LIBRARY.impl("compute", compute, "CPU")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    longer = 3 if cause == "compute" and dist.get_rank() == 1 else 1
    model = DistributedDataParallel(Net(COMPUTE_S * longer, NORMS if cause == "buffers" else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=STEPS - 3, repeat=1)
    with ddptrace.trace(run, profile=schedule):
        for step in range(STEPS):
            model(torch.full((WIDTH, WIDTH), 0.01 * (step + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    leave()


if __name__ == "__main__":
    main()
