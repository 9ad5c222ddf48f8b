"""A trainer whose steps wait for a second worker in every way, for known times. `rpc_waits.py FOLDER`.

What takes time is sleep, so that it can last longer than said but never shorter. Worker 1 serves and does nothing
else."""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

import ddptrace
from tests.programs.rpc_workers import fork_workers, join

PEER = "worker1"
SLEEP_S = 0.06
BUSY_S = 2 * SLEEP_S
REPEATED = 3
held = torch.ones(8, requires_grad=True)


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(SLEEP_S)
    return x + 1


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP_S)
        return gradients[0]


def slow_back(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = SlowBackward.apply(x * held)
    return out


def very_slow_back(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = SlowBackward.apply(x)
    return x * held


def quick_back(x: torch.Tensor) -> torch.Tensor:
    return x * held


def slow_back_alone() -> torch.Tensor:
    return slow_back(torch.ones(8))


def parameter() -> torch.Tensor:
    return held


class Remote(torch.nn.Module):
    """Its forward is one of the ways to call."""

    def __init__(self, way: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.way(x))
        return out


def at_once(x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync(PEER, slow, args=(x,))


def by_future(x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_async(PEER, slow, args=(x,)).wait()


def by_what_follows(x: torch.Tensor) -> torch.Tensor:
    """A future that the program made of torch's."""
    return rpc.rpc_async(PEER, slow, args=(x,)).then(lambda done: done.value() + 1).wait()


def by_all(x: torch.Tensor) -> torch.Tensor:
    return torch.futures.wait_all([rpc.rpc_async(PEER, slow, args=(x,)) for _ in range(2)])[1]


def by_reference(x: torch.Tensor) -> torch.Tensor:
    return rpc.remote(PEER, slow, args=(x,)).to_here()


def hidden(x: torch.Tensor) -> torch.Tensor:
    """The answer is there long before anybody asks for it."""
    future = rpc.rpc_async(PEER, slow, args=(x,))
    time.sleep(5 * SLEEP_S)
    return future.wait()


FORWARDS = (at_once, by_future, by_what_follows, by_all, by_reference, hidden)


def forward_step(way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Remote(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8)).sum().backward()
    optimizer.step()


class Through(torch.nn.Module):
    """Here too a backward takes its time: before the gradients leave, and after they came where any do."""

    def forward(self, function: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
        called = rpc.rpc_sync(PEER, function, args=tuple(SlowBackward.apply(one) for one in args))
        out: torch.Tensor = SlowBackward.apply(called)
        return out


def backward_step(optimizer: DistributedOptimizer, function: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [Through()(function, *args).sum()])
        optimizer.step(context)


class ThroughTwo(torch.nn.Module):
    """Backward reaches the call that was made last first: the quick one, which then comes back first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        back = rpc.rpc_sync(PEER, slow_back, args=(x + 1,))
        return back + rpc.rpc_sync(PEER, quick_back, args=(x + 2,))


def two_branches_step(optimizer: DistributedOptimizer) -> None:
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [ThroughTwo()(torch.ones(8, requires_grad=True)).sum()])
        optimizer.step(context)


class BusyBackward(torch.autograd.Function):
    """Computes: for so much CPU time, however long that takes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        until_s = time.thread_time() + BUSY_S
        while time.thread_time() < until_s:
            pass
        return gradients[0]


class ThroughBeside(torch.nn.Module):
    """The gradients of the quick call come first: with them this worker computes, long before those of the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        back = rpc.rpc_sync(PEER, very_slow_back, args=(x + 1,))
        return back + rpc.rpc_sync(PEER, quick_back, args=(BusyBackward.apply(x + 2),))


def beside_step(optimizer: DistributedOptimizer) -> None:
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [ThroughBeside()(torch.ones(8, requires_grad=True)).sum()])
        optimizer.step(context)


def main(rank: int, folder: Path) -> None:
    logging.disable()
    torch.set_num_threads(1)
    with ddptrace.trace(folder / "run"):
        join(rank, 2, folder)
        if rank == 0:
            optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.remote(PEER, parameter)], lr=0.1)
            for _ in range(REPEATED):
                for way in FORWARDS:
                    forward_step(way)
                backward_step(optimizer, slow_back, torch.ones(8, requires_grad=True))
                backward_step(optimizer, slow_back_alone)
                two_branches_step(optimizer)
                beside_step(optimizer)
        rpc.shutdown()


if __name__ == "__main__":
    assert fork_workers(2, functools.partial(main, folder=Path(sys.argv[1]))) == [0, 0]
