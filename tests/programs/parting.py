"""`parting.py RUN HOW`: the last rank parts from the others in step 3 of 6, as HOW says ("not": it does not).

What does not fit together fails after the timeout, on all ranks, and their traces end there.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace

PARTING_STEP = 3


def log(loss: torch.Tensor, how: str) -> None:
    loss = torch.stack([loss, loss]) if how == "size" else loss.to(torch.int32) if how == "dtype" else loss
    if how != "skip":
        dist.all_reduce(loss)
    if how == "extra":
        dist.broadcast(torch.ones(3), 0)
    dist.barrier()


def save_and_count(how: str) -> None:
    if how == "order":
        dist.all_reduce(torch.ones(5))  # counted first
    dist.broadcast(torch.ones(7), dist.get_world_size() - 1)
    if how != "order":
        dist.all_reduce(torch.ones(5))


def train(how: str) -> None:
    is_last = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.ones(2, 64)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mine = how if is_last and step == PARTING_STEP else "not"
        if how == "order" and step == PARTING_STEP:
            save_and_count(mine)
        log(loss.detach(), mine)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    with ddptrace.trace(sys.argv[1]), contextlib.suppress(RuntimeError):
        train(sys.argv[2])
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
