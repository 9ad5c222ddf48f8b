"""The rungs of the ladder on one rank: what they send, and when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddptrace.bench.experiments.ddp import Stopwatch, watched
from ddptrace.bench.strategies import AllReduce, Flat, Naive, Overlap, Rung, add_up


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Sent:
    """An all-reduce that keeps a note of (elements, gradients there at that time)."""

    def __init__(self) -> None:
        self.module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        self.notes: list[tuple[int, int]] = []

    def all_reduce(self, tensor: Tensor, *, async_op: bool = False) -> Any:
        self.notes.append((tensor.numel(), sum(p.grad is not None for p in self.module.parameters())))
        return add_up(tensor, async_op=async_op)


def stepped(rung: type[Rung], all_reduce: AllReduce, module: nn.Module) -> Rung:
    wrapped = rung(module, all_reduce)
    wrapped(torch.ones(3, 4)).sum().backward()
    wrapped.finish_grad_sync()
    return wrapped


def test_naive_sends_each_gradient_alone_when_all_are_there() -> None:
    sent = Sent()
    stepped(Naive, sent.all_reduce, sent.module)
    assert sent.notes == [(24, 4), (6, 4), (12, 4), (2, 4)]


def test_flat_sends_all_gradients_at_once() -> None:
    sent = Sent()
    stepped(Flat, sent.all_reduce, sent.module)
    assert sent.notes == [(44, 4)]


def test_overlap_sends_each_gradient_when_it_is_ready_and_leaves_none_for_the_next_step() -> None:
    sent = Sent()
    wrapped = stepped(Overlap, sent.all_reduce, sent.module)
    assert [there for _, there in sent.notes] == [1, 2, 3, 4]
    assert sorted(numel for numel, _ in sent.notes[:2]) == [2, 12], "the last layer's come first"
    assert wrapped._sent == []  # type: ignore[attr-defined] # an Overlap


@pytest.mark.parametrize("rung", [Naive, Flat, Overlap])
def test_a_rung_is_gone_when_nobody_holds_it(rung: type[Rung]) -> None:
    wrapped = stepped(rung, add_up, nn.Linear(4, 2))
    module = weakref.ref(wrapped.module)
    del wrapped
    gc.collect()
    assert module() is None


def slow(clock: list[int]) -> Callable[..., Any]:
    """Stands in for a group's all-reduce: issuing takes 10 ms, a wait 20 ms."""
    real = dist.ProcessGroup.allreduce

    def allreduce(group: Any, *args: Any, **how: Any) -> Any:
        clock[0] += 10_000_000
        return SlowWork(real(group, *args, **how), clock)

    return allreduce


class SlowWork:
    def __init__(self, work: Any, clock: list[int]) -> None:
        self.work, self.clock = work, clock

    def wait(self, *_: Any, **__: Any) -> bool:
        self.clock[0] += 20_000_000
        return bool(self.work.wait())

    def get_future(self) -> Any:
        return self.work.get_future()


@pytest.mark.parametrize(
    ("name", "calls", "each_ms"),
    [("naive", 4, 30), ("flat", 1, 30), ("overlap", 4, 30), ("bucketed", 4, 10), ("ddp", 4, 10)],
)
def test_a_stopwatch_sees_blocking_calls_whole_and_of_reducers_the_issuing_alone(
    name: str, calls: int, each_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a clock that only communication moves
    clock, stopwatch = [0], Stopwatch()
    monkeypatch.setattr("time.perf_counter_ns", lambda: clock[0])
    strategy = watched(name, 1e-6, stopwatch)  # a bucket for each parameter
    wrapped = strategy.wrap(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)))
    for _ in range(2):  # DDP makes its buckets in the first step
        wrapped(torch.ones(3, 4)).sum().backward()
        strategy.finish(wrapped)
    # WHEN a step is taken in which a collective takes 10 ms to issue and 20 ms to wait for
    monkeypatch.setattr(dist.ProcessGroup, "allreduce", slow(clock))
    stopwatch.ns = 0
    wrapped(torch.ones(3, 4)).sum().backward()
    strategy.finish(wrapped)
    assert stopwatch.ns == calls * each_ms * 1_000_000
