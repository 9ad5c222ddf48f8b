"""Communication time by a stopwatch around a program's calls, and which calls such a stopwatch sees.

    naive, flat    the synchronous all-reduces
    overlap        the asynchronous ones, which return at once, and the waits for them
    bucketed       the asynchronous ones alone, from launching to launched as a `BucketObserver` reports them
    ddp            the asynchronous ones alone, in a communication hook; DDP waits for them in C++

Measured on separate instances: a hook in Python makes a step of stock DDP some percent longer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import chain
from statistics import mean
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench import strategies
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.job import Job
from ddptrace.bench.strategies import Strategy
from ddptrace.bench.timing import interleaved
from ddptrace.bench.workloads import Trainee, Workload


class Stopwatch:
    """Adds up the time that its host thread spends in communication calls. `ns`: since the step began."""

    def __init__(self) -> None:
        self.ns = 0

    def timed(self, call: Callable[..., Any], *args: Any, **how: Any) -> Any:
        begin = time.perf_counter_ns()
        answer = call(*args, **how)
        self.ns += time.perf_counter_ns() - begin
        return answer

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Any:
        work = self.timed(dist.all_reduce, tensor, async_op=async_op)
        return TimedWork(work, self) if async_op else work

    def hook(self, bucket: Any) -> Future[Tensor]:
        """Do as stock DDP without a hook: divide, send."""
        tensor = bucket.buffer().div_(dist.get_world_size())
        work = self.timed(dist.all_reduce, tensor, async_op=True)
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


class TimedWork:
    """A collective that was issued."""

    def __init__(self, work: Any, stopwatch: Stopwatch) -> None:
        self._work, self._stopwatch = work, stopwatch

    def wait(self) -> None:
        self._stopwatch.timed(self._work.wait)


class Launches:
    """A `BucketObserver` that times from launching to launched."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch, self._begin = stopwatch, 0

    def bucket_launching(self, bucket: int, nbytes: int) -> None:
        self._begin = time.perf_counter_ns()

    def bucket_launched(self, bucket: int, sent: object) -> None:
        self._stopwatch.ns += time.perf_counter_ns() - self._begin

    def _passes(self, *_: object) -> None: ...

    reducer_made = layout_made = backward_begins = backward_ends = gradient_ready = _passes
    hook_begins = hook_ends = wait_begins = bucket_done = _passes


def watched(name: str, cap_mb: float, stopwatch: Stopwatch) -> Strategy:
    """Return the strategy of this name with a stopwatch in it."""
    if name == "bucketed":
        return strategies.bucketed(cap_mb, observer=Launches(stopwatch))
    if name == "ddp":
        return Strategy("ddp", lambda module: _hooked(module, strategies.stock_ddp(cap_mb), stopwatch))
    by_hand = {"naive": strategies.naive, "flat": strategies.flat, "overlap": strategies.overlap}
    return by_hand[name](stopwatch.all_reduce)


def _hooked(module: nn.Module, ddp: Strategy, stopwatch: Stopwatch) -> nn.Module:
    wrapped = ddp.wrap(module)
    assert isinstance(wrapped, DistributedDataParallel)
    wrapped.register_comm_hook(None, lambda state, bucket: stopwatch.hook(bucket))
    return wrapped


class Watched:
    """Steps of one strategy, and the stopwatch's time in each, warm-up included."""

    def __init__(self, job: Job, work: Workload, name: str, cap_mb: float) -> None:
        self._stopwatch = Stopwatch()
        self._trainee = Trainee(job, work, watched(name, cap_mb, self._stopwatch))
        self.comm_ns: list[int] = []

    def step(self) -> None:
        self._stopwatch.ns = 0
        self._trainee.step()
        self.comm_ns.append(self._stopwatch.ns)


def watch(job: Job, work: Workload, names: tuple[str, ...], cap_mb: float, repeats: Repeats) -> dict[str, Any]:
    """Return, by strategy, `step_ns` of the slowest rank and `comm_ns`, the mean over ranks, of each timed step.
    Collective."""
    things = {name: Watched(job, work, name, cap_mb) for name in names}
    times = interleaved(job, {name: thing.step for name, thing in things.items()}, repeats)
    return {
        name: {"step_ns": list(chain(*times[name])), "comm_ns": _over_ranks(job, _timed(thing.comm_ns, repeats))}
        for name, thing in things.items()
    }


def _over_ranks(job: Job, mine_ns: list[int]) -> list[int]:
    """Return the mean, like the trace's numbers: the slowest rank's would count all waiting for others."""
    return [round(mean(of_ranks)) for of_ranks in zip(*cast("list[list[int]]", job.gather(mine_ns)), strict=True)]


def _timed(comm_ns: list[int], repeats: Repeats) -> list[int]:
    """Drop the warm-up at the beginning of each round."""
    per_round = repeats.warmup + repeats.steps
    return [ns for at, ns in enumerate(comm_ns) if at % per_round >= repeats.warmup]


def give_memory_back() -> None:
    """Free the trainees of one cell before the next cell builds its own. Hooks hold some of them in cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
