"""Which futures the host waits for are those of remote calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddptrace.capture.rpc.waits import RpcWaits
from ddptrace.capture.surface import Patches, Surface
from ddptrace.schema import Kind

LATE_S = 0.05


class Recorded(list[tuple[Any, ...]]):
    """In place of a recorder."""

    def event(self, *fields: Any) -> None:
        self.append(fields)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """What is recorded while call 1 is under way."""
    patches, found = Patches(), Recorded()
    waits = RpcWaits(found, Surface("rpc", lambda code, message: None), {1})  # type: ignore[arg-type]
    waits.has_calls = True
    waits.install(patches)
    yield found
    assert patches.undo() == []


@pytest.fixture(scope="module")
def backends() -> list[Any]:
    """Both ranks of a group, in this process."""
    store, timeout = dist.HashStore(), timedelta(seconds=30)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, timeout), range(2)))


class Odd(torch.futures.Future[int]):
    """Raises where it is asked, and has no hash."""

    def done(self) -> bool:
        raise RuntimeError("not for you")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not for you")


def later(act: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(LATE_S, act)
    timer.start()
    return timer


def test_a_future_that_a_call_will_complete_is_waited_for(recorded: Recorded) -> None:
    given: torch.futures.Future[int] = torch.futures.Future()
    chained = given.then(lambda done: done.value() + 1)
    timer = later(lambda: given.set_result(1))
    assert chained.wait() == 2
    timer.join()
    ((kind, _, _, begin, end),) = recorded
    assert kind == Kind.RPC_WAIT and end - begin >= LATE_S * 1e9 / 2


def test_a_future_of_the_programs_own_kind_is_asked_nothing(recorded: Recorded) -> None:
    future = Odd()
    future.then(lambda done: None)
    timer = later(lambda: future.set_result(1))
    assert future.wait() == 1
    timer.join()
    assert [kind for kind, *_ in recorded] == [Kind.RPC_WAIT]


@pytest.mark.parametrize("chains", [0, 1, 2])
def test_the_future_of_a_collective_is_none_of_a_remote_calls(
    recorded: Recorded, backends: list[Any], chains: int
) -> None:
    first, second = backends
    future = first.allreduce([torch.ones(2)]).get_future()
    for _ in range(chains):
        future = future.then(lambda done: done.value())
    timer = later(lambda: second.allreduce([torch.ones(2)]).wait())
    assert not future.done()
    assert future.wait()[0].tolist() == [2.0, 2.0]
    timer.join()
    assert recorded == []


@pytest.mark.parametrize("remote", [0, 1])
def test_all_futures_of_collectives_together_are_none_of_a_remote_calls_either(
    recorded: Recorded, backends: list[Any], remote: int
) -> None:
    """`remote`: so many futures among them are of something else, which counts."""
    first, second = backends
    futures = [first.allreduce([torch.ones(2)]).get_future() for _ in range(2)]
    others: list[torch.futures.Future[int]] = [torch.futures.Future() for _ in range(remote)]

    def complete() -> None:
        for _ in futures:
            second.allreduce([torch.ones(2)]).wait()
        for other in others:
            other.set_result(1)

    timer = later(complete)
    assert len(torch.futures.wait_all([*futures, *others])) == 2 + remote
    timer.join()
    assert [kind for kind, *_ in recorded] == [Kind.RPC_WAIT] * remote
