"""The program that runs again and again: two ranks on two hosts, whose link has a set rate.

    data 1 ms · forward 3 ms · backward of 4 layers, 1 ms each, a bucket of 256 kB behind each · update 1 ms

Ranks mostly sleep, so that none waits for a processor, and the link takes time but no processor. A planted change is
more bytes, sent beside one of the buckets in each step.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hosts import DEVICE, enter
from ddptrace.bench.traced import recording

LAYERS: Final = 4
WIDTH: Final = 256
RANKS: Final = 2
LINK_BYTES_PER_S: Final = 125e6
WORK_MS: Final = 0.2
DATA_MS, FORWARD_MS, BACKWARD_MS, UPDATE_MS = 1.0, 3.0, 1.0, 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """One run. `namespaces`: the ranks' hosts. `bucket`: the one beside which `extra_nbytes` are sent."""

    run: Path
    namespaces: tuple[str, ...]
    steps: int
    bucket: int = 0
    extra_nbytes: int = 0


def be_rank(rank: int, order: Order) -> list[int]:
    """Train under a trace. Returns the ns of each step, from update to update."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": DEVICE}
    enter(order.namespaces[rank])
    dist.init_process_group("gloo", init_method=f"file://{order.run}.store", rank=rank, world_size=RANKS)
    gc.freeze()
    times = _train(order)
    dist.destroy_process_group()
    return times


def _take(ms: float) -> None:
    """Compute a little, and sleep for the rest of `ms`."""
    one = torch.ones(64, 64)
    until = time.thread_time_ns() + round(WORK_MS * 1e6)
    while time.thread_time_ns() < until:
        torch.mm(one, one)
    time.sleep((ms - WORK_MS) / 1e3)


class _Layer(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _take(BACKWARD_MS)
        return gradient


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, inputs: Tensor) -> Tensor:
        _take(FORWARD_MS)
        for layer in self.layers:
            inputs = torch.relu(_Layer.apply(layer(inputs)))  # type: ignore[no-untyped-call]
        return inputs


class _Sent:
    """The communication hook: sends the bucket, and beside it the planted bytes."""

    def __init__(self, order: Order) -> None:
        self._bucket = order.bucket
        self._extra = torch.zeros(order.extra_nbytes, dtype=torch.uint8) if order.extra_nbytes else None

    def send(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if self._extra is not None and bucket.index() == self._bucket:
            dist.all_reduce(self._extra, async_op=True)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        sent: torch.futures.Future[Any] = work.get_future()
        return sent.then(lambda done: done.value()[0])


def _train(order: Order) -> list[int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(_Net(), bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    hook = _Sent(order)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    dist.barrier()
    with recording(order.run):
        model.register_comm_hook(None, lambda state, bucket: hook.send(bucket))
        ends = [time.monotonic_ns()]
        for _ in range(order.steps):
            _take(DATA_MS)
            optimizer.zero_grad()
            model(torch.ones(8, WIDTH)).pow(2).mean().backward()
            _take(UPDATE_MS)
            optimizer.step()
            ends.append(time.monotonic_ns())
    return [end - begin for begin, end in pairwise(ends)]
