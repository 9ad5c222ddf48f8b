"""The settings of FSDP2 to measure, and the program that is traced: one model for each setting, two steps in turn.

turn 0   prefetch 1: 3 steps | prefetch 2: 3 | merged 2: 3 | kept: 3 | ...
turn 1   kept: 2 steps | prefetch 1: 2 | merged 2: 2 | ...                  the order is another each turn

Computation is mostly sleep, and ranks go before other work of the machine where the system lets them, so that this
disturbs them little; parameters, gathers and reductions are real. The memory of a step is measured apart, with torch's
fake process group: profilers miss what Gloo's threads let go.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.hosts import DEVICE, Network, enter
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.bench.traced import recording

FIRST_STEPS: Final = 3
STEPS: Final = 2
BLOCKS: Final = 8
WIDTH: Final = 384
FORWARD_S, BACKWARD_S = 0.008, 0.016
"""Sleep in one of the two halves of a block."""
BATCH: Final = 1


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting to measure. `blocks`: in one unit."""

    name: str
    forward: int = 1  # units that are gathered ahead
    backward: int = 1
    blocks: float = 1.0
    is_kept: bool = False
    is_async: bool = True
    is_separate: bool = False
    is_half: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether predictions start from it: its units and reductions are the usual ones."""
        return self.blocks == 1 and not self.is_half and not self.is_separate

    @property
    def setting(self) -> Setting:
        """The whole of it, whatever was recorded."""
        return Setting(
            forward_prefetch=self.forward,
            backward_prefetch=self.backward,
            unit_size=self.blocks,
            reshard_after_forward=not self.is_kept,
            unshard_async_op=self.is_async,
            separate_reduce_scatter_group=self.is_separate,
            reduce_dtype="bfloat16" if self.is_half else None,
        )


ALL: Final = (
    Tried("prefetch 0", 0, 0),
    Tried("prefetch 1"),
    Tried("prefetch 2", 2, 2),
    Tried("prefetch 3", 3, 3),
    Tried("as torch does", 0, is_async=False),
    Tried("kept", is_kept=True),
    Tried("kept, prefetch 0", 0, 0, is_kept=True),
    Tried("units of 2", blocks=2),
    Tried("units of 4", blocks=4),
    Tried("units of 1/2", blocks=0.5),
    Tried("units of 2, prefetch 2", 2, 2, blocks=2),
    Tried("separate group", is_separate=True),
    Tried("bfloat16", is_half=True),
)


@dataclass(frozen=True, slots=True)
class Order:
    """One run. `network`: None for ranks on one host."""

    run: Path
    ranks: int
    tried: tuple[Tried, ...]
    turns: int
    network: Network | None

    def numbered(self) -> Iterator[int]:
        """Yield, for each step of the run, the number of its setting."""
        everything = list(range(len(self.tried)))
        for at in everything:
            yield from (at for _ in range(FIRST_STEPS))
        for turn in range(self.turns):
            random.Random(turn).shuffle(everything)
            for at in everything:
                yield from (at for _ in range(STEPS))

    def steps_of(self, number: int) -> frozenset[int]:
        """Return the steps of one setting, but the first, which warm it up."""
        mine = [step for step, one in enumerate(self.numbered()) if one == number]
        return frozenset(mine[FIRST_STEPS:])


def be_rank(rank: int, order: Order) -> None:
    """Train and trace under all settings."""
    torch.set_num_threads(1)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order.ranks)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if order.network is None else DEVICE
    if order.network is not None:
        enter(order.network.namespaces[rank])
    dist.init_process_group("gloo", init_method=f"file://{order.run}.store", rank=rank, world_size=order.ranks)
    trainees = [_Trainee(tried) for tried in order.tried]
    with recording(order.run):
        for number in order.numbered():
            trainees[number].step()
    dist.barrier()


def peaks(ranks: int, tried: Sequence[Tried]) -> dict[str, int]:
    """Return the bytes that one rank takes at most for parameters, gathered units and gradients, by setting."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    return {one.name: _Trainee(one).peak_nbytes() for one in tried if not one.is_separate}


class _Slept(torch.autograd.Function):
    """Takes time on the way forward and on the way back."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return gradients[0]


class Half(nn.Module):
    """Half of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        slept: Tensor = _Slept.apply(inputs)  # type: ignore[no-untyped-call]
        return torch.tanh(self.linear(slept))


class Deep(nn.Module):
    """A narrow layer of the root unit before and after equal blocks of two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH // 4, WIDTH, bias=False)
        self.halves = nn.ModuleList(Half() for _ in range(2 * BLOCKS))
        self.last = nn.Linear(WIDTH, WIDTH // 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for half in self.halves:
            hidden = half(hidden)
        loss: Tensor = self.last(hidden).square().mean()
        return loss


def sharded(tried: Tried) -> nn.Module:
    """Make the model under a setting."""
    torch.manual_seed(0)
    model = Deep()
    halves = list(model.halves)
    count = round(2 * tried.blocks)
    parts = [halves[at : at + count] for at in range(0, len(halves), count)]
    how: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} if tried.is_half else {}
    for part in parts:
        fully_shard(part if len(part) > 1 else part[0], reshard_after_forward=not tried.is_kept, **how)
    root = fully_shard(model, **how)
    root._set_unshard_async_op(tried.is_async)
    if tried.is_separate:
        root.set_separate_reduce_scatter_group()
    units = [root, *(part[0] for part in parts)]
    _prefetch(units, tried)
    return model


def _prefetch(units: Sequence[Any], tried: Tried) -> None:
    """`units`: in the order of forward; backward begins with the first, too, and then takes the others from the end."""
    backward = [units[0], *reversed(units[1:])]
    for at, unit in enumerate(units):
        assert isinstance(unit, FSDPModule)
        unit.set_modules_to_forward_prefetch(list(units[at + 1 : at + 1 + tried.forward]))
    for at, unit in enumerate(backward):
        unit.set_modules_to_backward_prefetch(backward[at + 1 : at + 1 + tried.backward] or [unit])


class _Trainee:
    def __init__(self, tried: Tried) -> None:
        self.tried = tried
        self._model = sharded(tried)
        self._inputs = torch.randn(BATCH, WIDTH // 4)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, foreach=False)

    def step(self) -> None:
        self._model(self._inputs).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def peak_nbytes(self) -> int:
        """Return the peak of parameters, gathered units and gradients in one step, by the allocator."""
        self.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.step()
        shards = sum(one.to_local().nbytes for one in self._model.parameters())  # type: ignore[attr-defined]
        return int(shards + max(accumulate(_allocations(profile)), default=0))


def _allocations(profile: Any) -> Iterator[int]:
    """Yield what was allocated, and as a negative number what was freed, in order of time."""
    events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    yield from (one.nbytes() for one in sorted(events, key=lambda one: one.start_ns()))
