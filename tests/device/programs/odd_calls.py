"""Makes odd uses of a process group, untraced and traced: `odd_calls.py RUN OUT`.

Rank R leaves `told-R.json` in OUT: what each training computed.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.profiler import schedule

import ddptrace
from tests.device.device import HERE

STEPS = 5


class Unhashable(dist.Work):
    """The program's own kind of Work."""

    __hash__ = None  # type: ignore[assignment]

    def wait(self, timeout: timedelta = timedelta(milliseconds=1)) -> bool:
        try:
            return super().wait(timeout)
        except RuntimeError:  # it never ends
            return False


def main() -> None:
    run, out = sys.argv[1], Path(sys.argv[2])
    HERE.begin()
    groups = [dist.new_group(), dist.new_group()]
    told = {"untraced": trained(groups)}
    with ddptrace.trace(run, profile=schedule(wait=2, warmup=1, active=2, repeat=1)):
        told["traced"] = trained(groups)
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps(told))
    HERE.end()


def trained(groups: list[Any]) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(16, 16).to(HERE.name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        model(torch.randn(4, 16).to(HERE.name)).pow(2).mean().backward()
        refused_batch()
        Unhashable().wait()
        losses += [nested_batches(groups), reduced(model)]
        optimizer.step()
        optimizer.zero_grad()
    return [loss.item() for loss in losses]


def refused_batch() -> None:
    try:
        with _coalescing_manager(device=torch.device("cpu")):
            raise AssertionError("Gloo has no batches")
    except RuntimeError:
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # which torch leaves behind


def nested_batches(groups: list[Any]) -> torch.Tensor:
    """Send in two groups and receive in both, the second batch within the first."""
    peer, device = 1 - dist.get_rank(), torch.device(HERE.name)
    sent, outer, inner = (torch.ones(8).to(HERE.name) for _ in range(3))
    with _coalescing_manager(groups[0], device, async_ops=True) as first:
        dist.isend(sent, peer, group=groups[0])
        with _coalescing_manager(groups[1], device, async_ops=True) as second:
            dist.isend(sent, peer, group=groups[1])
            dist.irecv(inner, peer, group=groups[1])
        dist.irecv(outer, peer, group=groups[0])
    second.wait()
    first.wait()
    return (outer + inner).sum()


def reduced(model: nn.Module) -> torch.Tensor:
    """Reduce on the device, and in the same group on the host."""
    dist.all_reduce(torch.ones(1))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return sum(parameter.grad.sum() for parameter in model.parameters())  # type: ignore[union-attr,return-value]


main()
