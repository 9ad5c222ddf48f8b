"""The program that is traced: ranks that mostly sleep, so that none waits for a processor, and one that is late.

    data 1 ms · forward 0.5 ms of work, 6.5 of sleep · backward of 4 layers, 0.2 and 3.8 each · update 0.2 and 1.8

On a machine with too few processors, a rank that sleeps speeds up ranks that compute all the time, and the cost of the
sleep would have no measure.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from benchmarks.blame_plants import is_on
from benchmarks.blame_quota import Group
from benchmarks.hosts import DEVICE, Network, enter
from ddptrace.bench.traced import recording

LAYERS: Final = 4
WIDTH: Final = 256
LINK_WIDTH: Final = 512
"""For buckets of 1 MB, which make a slow link show."""
PLANT_NS: Final = 30_000_000
"""Long compared with the spread of steps of four ranks on two cores, so that a run shows its truth."""
FORWARD_MS, FORWARD_REST_MS = 0.5, 6.5
HELD_MS: Final = 40.0
"""Work in forward if a quota is to show: a rank that mostly sleeps never uses half a core. The other ranks sleep for
the difference, since there may be too few processors for all."""
BATCH: Final = 8


@dataclass(frozen=True, slots=True)
class Order:
    """One run. `plant`: its name, empty for none. `late`: the rank that has it."""

    run: Path
    ranks: int
    steps: int
    plant: str
    late: int
    network: Network | None = None
    group: Group | None = None


def be_rank(rank: int, order: Order) -> list[int]:
    """Train under a trace. Returns the ns of each step, from update to update."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order.ranks)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if order.network is None else DEVICE
    if order.network is not None:
        enter(order.network.namespaces[rank])
    late = Late(order if rank == order.late else None)
    dist.init_process_group("gloo", init_method=f"file://{order.run}.store", rank=rank, world_size=order.ranks)
    times = _train(order, late)
    dist.destroy_process_group()
    return times


class Late:
    """What makes this rank late; nothing on the other ranks."""

    def __init__(self, order: Order | None) -> None:
        self._plant = order.plant if order is not None else ""
        self.is_late = bool(self._plant)
        self._is_on = False
        self._lists: list[list[object]] = []
        self._set: Callable[[bool], None] = lambda on: None
        if order is not None and self._plant == "link" and order.network is not None:
            network = order.network
            self._set = lambda on: network.slow(is_slow=on)
        if order is not None and self._plant == "half-core" and order.group is not None:
            group = order.group
            group.join()
            self._set = lambda on: group.hold(is_held=on)

    def begin(self, step: int) -> None:
        """Begin a step, right after the update of the step before."""
        if step == 1 and self._plant == "gc":
            self._lists = _enough_lists()  # torch has done the imports of its first step
        if is_on(step) != self._is_on:
            self._is_on = is_on(step)
            self._set(self._is_on)
        if self._is_on and self._plant == "gc":
            gc.collect()

    def at(self, part: str) -> None:
        if self._is_on and part == self._plant:
            time.sleep(PLANT_NS / 1e9)


def _enough_lists() -> list[list[object]]:
    """Return so many lists that a collection takes about as long as the other plants."""
    gc.collect()
    gc.freeze()
    lists: list[list[object]] = [[] for _ in range(10_000)]
    while True:
        begin = time.perf_counter_ns()
        gc.collect()
        took_ns = time.perf_counter_ns() - begin
        if took_ns >= PLANT_NS:
            return lists
        more = min(len(lists), round(len(lists) * (PLANT_NS / took_ns - 1)) + 1_000)
        lists += [[] for _ in range(more)]


def _work(ms: float) -> None:
    """Compute for `ms` of this thread's processor time."""
    one = torch.ones(64, 64)
    until = time.thread_time_ns() + round(ms * 1e6)
    while time.thread_time_ns() < until:
        torch.mm(one, one)


def _rest(ms: float) -> None:
    time.sleep(ms / 1e3)


class _Layer(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, before: Callable[[], None]) -> Tensor:
        ctx.before = before
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.before()
        _work(0.2)
        _rest(3.8)
        return gradient, None


def _nothing() -> None:
    return


class _Net(nn.Module):
    def __init__(self, width: int, work_ms: float, rest_ms: float, late: Late) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self._work_ms, self._rest_ms, self._late = work_ms, rest_ms, late

    def forward(self, inputs: Tensor) -> Tensor:
        self._late.at("forward")
        _work(self._work_ms)
        _rest(self._rest_ms)
        for at, layer in enumerate(self.layers):
            before = self._backward if at == LAYERS // 2 else _nothing
            inputs = torch.relu(_Layer.apply(layer(inputs), before))  # type: ignore[no-untyped-call]
        return inputs

    def _backward(self) -> None:
        self._late.at("backward")


def _net(order: Order, width: int, late: Late) -> _Net:
    most_ms = FORWARD_MS if order.group is None else HELD_MS
    work_ms = most_ms if late.is_late else FORWARD_MS
    return _Net(width, work_ms, FORWARD_REST_MS + most_ms - work_ms, late)


class _Rows(Dataset[Tensor]):
    def __init__(self, steps: int, width: int) -> None:
        self._steps, self._row = steps, torch.ones(width)

    def __len__(self) -> int:
        return self._steps * BATCH

    def __getitem__(self, index: int) -> Tensor:
        return self._row


class _Sgd(torch.optim.SGD):
    late: Late

    def step(self, closure: Any = None) -> Any:
        self.late.at("optimizer")
        _work(0.2)
        _rest(1.8)
        return super().step(closure)


def _loader(steps: int, width: int, late: Late) -> DataLoader[Tensor]:
    def collate(rows: list[Tensor]) -> Tensor:
        late.at("data")
        _rest(1)
        return torch.stack(rows)

    return DataLoader(_Rows(steps, width), batch_size=BATCH, collate_fn=collate)


def _train(order: Order, late: Late) -> list[int]:
    torch.manual_seed(0)
    width = LINK_WIDTH if order.network is not None else WIDTH
    model = DistributedDataParallel(_net(order, width, late), bucket_cap_mb=width * width * 4 / 2**20)
    optimizer = _Sgd(model.parameters(), lr=1e-6)
    optimizer.late = late
    rows = iter(_loader(order.steps, width, late))
    ends, loss = [], torch.zeros(1)
    dist.barrier()
    with recording(order.run):
        ends.append(time.monotonic_ns())
        for step in range(order.steps):
            late.begin(step)
            optimizer.zero_grad()
            dist.all_reduce(loss)  # like programs that report their loss
            loss = model(next(rows)).pow(2).mean()
            loss.backward()
            loss = loss.detach()
            optimizer.step()
            ends.append(time.monotonic_ns())
    return [end - begin for begin, end in pairwise(ends)]
