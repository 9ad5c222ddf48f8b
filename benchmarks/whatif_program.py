"""The settings to measure, and the program that is traced: one DDP for each setting, two steps in turn.

turn 0   cap 1: 5 steps | cap 5: 5 | cap 25: 5 | no_sync 2: 5 | ...      buckets are rebuilt in the second one
turn 1   cap 5: 2 steps | no_sync 2: 2 | cap 1: 2 | ...                  the order is another each turn

So what disturbs the machine disturbs all settings alike. One run directory holds them all, each as a separate reducer,
and each prediction uses the steps of one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hosts import DEVICE, Network, enter
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.bench.traced import recording
from ddptrace.bench.workloads import workload

FIRST_STEPS: Final = 5
STEPS: Final = 2
LOOPBACK: Final = "loopback"
"""In place of a rate: ranks on one host, where communication takes processor time."""
MIDDLE_CAP_MB: Final = 5.0
"""Cap of the settings that differ in something else."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting to measure."""

    cap_mb: float
    backwards: int = 1
    is_fp16: bool = False

    @property
    def name(self) -> str:
        more = " fp16" if self.is_fp16 else f" no_sync {self.backwards}" if self.backwards > 1 else ""
        return f"cap {self.cap_mb:g}{more}"

    @property
    def is_plain(self) -> bool:
        """Whether it sets only a cap: predictions start from such settings."""
        return self.backwards == 1 and not self.is_fp16

    @property
    def setting(self) -> Setting:
        return Setting((self.cap_mb,), fp16=self.is_fp16, accumulate=self.backwards)


def tried_of(caps_mb: Sequence[float], backwards: Sequence[int], *, fp16: bool) -> tuple[Tried, ...]:
    """Return the settings, plain caps first."""
    return tuple(_tried(caps_mb, backwards, fp16))


def _tried(caps_mb: Sequence[float], backwards: Sequence[int], fp16: bool) -> Iterator[Tried]:
    yield from (Tried(cap) for cap in caps_mb)
    yield from (Tried(MIDDLE_CAP_MB, count) for count in backwards if count > 1)
    if fp16:
        yield Tried(MIDDLE_CAP_MB, is_fp16=True)


@dataclass(frozen=True, slots=True)
class Order:
    """One run. `network`: None for ranks on one host."""

    run: Path
    ranks: int
    model: str
    tried: tuple[Tried, ...]
    turns: int
    network: Network | None


def be_rank(rank: int, order: Order) -> None:
    """Train and trace under all settings."""
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
