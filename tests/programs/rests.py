"""DDP whose layers rest where others compute, so that ranks need no processor: `rests.py CAPS_MB RUN [CAPS_MB RUN …]`.

One run after the other in the same processes. "6/2": a cap of 6, and of two backwards one only accumulates; "1,6": a
first bucket of 1. RANK and MASTER_ADDR are set.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

LAYERS, NUMEL, STEPS = 12, 250_000, 6
FORWARD_S, LAYER_S = 0.03, 0.008


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(LAYER_S)
        return gradient


class Net(nn.Module):
    """12 MB in equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(NUMEL)) for _ in range(LAYERS))

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        for weight in self.weights:
            inputs = _Rest.apply(inputs + weight.sum())  # type: ignore[no-untyped-call]
        return inputs


def train(caps_mb: str, run: str) -> None:
    told, _, every = caps_mb.partition("/")
    caps = [float(cap) for cap in told.split(",")]
    given: dict[str, Any] = {"bucket_cap_mb": caps[0]} if len(caps) == 1 else {"bucket_cap_mb_list": caps}
    model = DistributedDataParallel(Net(), gradient_as_bucket_view=True, **given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with ddptrace.trace(run):
        for _ in range(STEPS):
            for nth in reversed(range(int(every or 1))):
                with model.no_sync() if nth else nullcontext():
                    model(torch.ones(4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for caps_mb, run in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        train(caps_mb, run)
    leave()


if __name__ == "__main__":
    main()
