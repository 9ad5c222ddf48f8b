"""Trains a tiny model in DDP and ends as its argument says; it knows nothing of ddptrace, but for `own`.

Alone, or under torchrun. `own PATH`: enters a trace of its own after a few steps. `restarted PATH`: its first attempt
fails; each attempt meets in a file of its own, since Gloo over torchrun's store does not always come back by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


def train(steps: int) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def end(how: str) -> None:
    if how == "destroyed":
        dist.destroy_process_group()
    elif how == "exit":
        sys.exit(7)
    elif how == "raise":
        raise LookupError("planted")
    elif how == "os-exit":
        os._exit(9)
    elif how == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)


def fork() -> None:
    """Before there is a group: its threads are missing in a child, whose end would wait for them."""
    if os.fork() == 0:
        nn.Linear(8, 8)(torch.randn(4, 8))
        sys.exit(0)
    os.wait()


def own(path: str) -> None:
    import ddptrace

    with ddptrace.trace(path):
        train(STEPS + 1)


def restarted(path: str) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.barrier()
        if dist.get_rank() == 1:
            raise LookupError("planted")
        time.sleep(60)  # until the launcher ends us
    train(STEPS + 1)


def main() -> None:
    if sys.argv[1] == "forks":
        fork()
    if sys.argv[1] == "restarted":
        meeting = f"file://{sys.argv[2]}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks)
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(STEPS)
    how, rest = sys.argv[1], sys.argv[2:]
    ways = {"own": own, "restarted": restarted}
    if how in ways:
        ways[how](*rest)
        dist.destroy_process_group()
    else:
        end(how)


if __name__ == "__main__":
    main()
