"""Two tensor-parallel ranks, of which rank 1 comes late to every collective. `tensor_order.py OUT`.

`nature`: the next layer needs each result at once. `order`: rank 0 computes for a while before it needs the result, for
a shorter time than it then waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

import ddptrace
from tests.programs.leaving import leave

STEPS, WIDTH, LATE_S, BETWEEN_S = 5, 16, 0.04, 0.015


class Divided(nn.Module):
    """Each rank has a part of the sum that makes the output."""

    def __init__(self, mesh: DeviceMesh, *, has_slack: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.mesh = mesh
        self.has_slack = has_slack

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.linear(x)
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        whole = DTensor.from_local(part, self.mesh, [Partial()]).redistribute(placements=[Replicate()], async_op=True)
        result: torch.Tensor = whole.to_local()
        if self.has_slack and dist.get_rank() == 0:
            time.sleep(BETWEEN_S)
        return result + 1


def train(out: Path, mesh: DeviceMesh, *, has_slack: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Divided(mesh, has_slack=has_slack), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(out):
        for _ in range(STEPS):
            model(torch.ones(4, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for name in ("nature", "order"):
        train(out / name, mesh, has_slack=name == "order")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
