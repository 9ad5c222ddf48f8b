"""The mix of DDP and RPC as in the tutorial of torch: two trainers with a DDP model around a table of embeddings that
a third worker holds, started by a fourth. `rpc_hybrid.py FOLDER`. Trainer 1 comes late to every backward: it sleeps for
LATE_S once trainer 0 is there."""

from __future__ import annotations

import functools
import logging
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.rpc_workers import fork_workers, join

STEPS, LATE_S = 4, 0.2
ROWS, WIDTH = 100, 16
TRAINERS, MASTER = (0, 1), 2
SERVER = "worker3"


class Hybrid(torch.nn.Module):
    def __init__(self, embeddings: RemoteModule) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.top = DistributedDataParallel(torch.nn.Linear(WIDTH, 2048))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top(self.embeddings.forward(x))
        return out


def train(embeddings: RemoteModule, rank: int, folder: Path) -> None:
    model = Hybrid(embeddings)
    parameters = [*embeddings.remote_parameters(), *(rpc.RRef(one) for one in model.top.parameters())]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.1)
    for step in range(STEPS):
        with dist_autograd.context() as context:
            loss = model(torch.arange(8)).sum()
            first_is_there = folder / f"backward-{step}"
            if rank:
                come_late(first_is_there)
            else:
                first_is_there.touch()
            dist_autograd.backward(context, [loss])
            optimizer.step(context)


def come_late(first_is_there: Path) -> None:
    while not first_is_there.exists():
        time.sleep(0.001)
    time.sleep(LATE_S)


def main(rank: int, folder: Path) -> None:
    logging.disable()
    torch.set_num_threads(1)
    with ddptrace.trace(folder / "run"):
        if rank in TRAINERS:
            dist.init_process_group("gloo", f"file://{folder / 'group'}", rank=rank, world_size=len(TRAINERS))
        join(rank, 4, folder)
        if rank == MASTER:
            embeddings = RemoteModule(SERVER, torch.nn.Embedding, args=(ROWS, WIDTH))
            for future in [rpc.rpc_async(f"worker{one}", train, args=(embeddings, one, folder)) for one in TRAINERS]:
                future.wait()
        rpc.shutdown()


if __name__ == "__main__":
    assert fork_workers(4, functools.partial(main, folder=Path(sys.argv[1]))) == [0] * 4
