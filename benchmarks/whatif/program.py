"""The program that is traced: the same model once for each setting, each in a DDP of its own, two steps in turn.

turn 0   cap 1: 5 steps | cap 5: 5 | cap 25: 5 | no_sync 2: 5 | ...      buckets are built anew in the second one
turn 1   cap 5: 2 steps | no_sync 2: 2 | cap 1: 2 | ...                  the order is another each turn

What disturbs the machine so disturbs all settings alike. They lie in one run directory, each as a reducer of its own,
and a prediction is made of the steps of one.
"""

from __future__ import annotations

import os
import random
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hosts import DEVICE, Network, enter
from benchmarks.whatif.settings import Tried
from ddptrace.bench.traced import recording
from ddptrace.bench.workloads import workload

FIRST_STEPS: Final = 5
STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class Order:
    """One run. `network`: None for ranks of one host."""

    run: Path
    ranks: int
    model: str
    tried: tuple[Tried, ...]
    turns: int
    network: Network | None


def be_rank(rank: int, order: Order) -> None:
    """Train under all settings, traced."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order.ranks)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if order.network is None else DEVICE
    if order.network is not None:
        enter(order.network.namespaces[rank])
    dist.init_process_group("gloo", init_method=f"file://{order.run}.store", rank=rank, world_size=order.ranks)
    _train(rank, order)
    dist.destroy_process_group()


def _train(rank: int, order: Order) -> None:
    with recording(order.run):
        trainees = [_Trainee(rank, order.model, tried) for tried in order.tried]
        for trainee in trainees:
            trainee.steps(FIRST_STEPS)
        for turn in range(order.turns):
            random.Random(turn).shuffle(trainees)
            for trainee in trainees:
                trainee.steps(STEPS)


class _Trainee:
    def __init__(self, rank: int, model: str, tried: Tried) -> None:
        torch.manual_seed(0)
        work = workload(model)
        more: dict[str, Any] = {"process_group": dist.new_group(), "gradient_as_bucket_view": True}
        self._model = DistributedDataParallel(work.make(), bucket_cap_mb=tried.cap_mb, **more)
        if tried.is_fp16:
            self._model.register_comm_hook(more["process_group"], fp16_compress_hook)
        self._batch = work.batch(torch.Generator().manual_seed(1 + rank), work.batch_size)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._backwards = tried.backwards

    def steps(self, count: int) -> None:
        for _ in range(count):
            for left in reversed(range(self._backwards)):
                with self._model.no_sync() if left else nullcontext():
                    self._model(*self._batch).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
