"""The training of these programs: a small model on any device, wrapped by stock DDP or by BucketedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.reducer import BucketedDataParallel

Wrap = Callable[[nn.Module], nn.Module]
AfterStep = Callable[[int], None]  # called with the number of steps done

CAP_MB: Final = 0.01  # less than one layer: each is a bucket
KERNEL_NS: Final = 300_000
COLLECTIVE_NS: Final = 3_000_000
"""How long each takes at least, so that the device has more to do than the host."""

WRAPPERS: Final[Mapping[str, Wrap]] = {
    "stock": lambda model: DistributedDataParallel(model, bucket_cap_mb=CAP_MB),
    "own": lambda model: BucketedDataParallel(model, bucket_cap_mb=CAP_MB, first_bucket_mb=CAP_MB),
}


def trained(device: str, wrap: Wrap, steps: int, after_step: AfterStep = lambda done: None) -> list[float]:
    """Train, and return the loss of each step. Nothing waits for the device before the last step is over."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(16, 64).to(device) for _ in range(steps)]
    losses = []
    for done, batch in enumerate(batches, 1):
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after_step(done)
    return [loss.item() for loss in losses]
