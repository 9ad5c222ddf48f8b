"""Stalls of the process: what tells that it launches nothing on a device that has run out of work."""

from __future__ import annotations

import threading
import time
from collections import UserDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from ddptrace.capture.device.stalls import LAUNCH_NS, Fetches, StallWatch, has_run, is_on_host, used_by_thread
from ddptrace.capture.device.timed_events import Still

STALL_NS = 500_000_000


class Overridden(list[torch.Tensor]):
    """A batch of which nothing may be asked."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise AssertionError


class Timer:
    """Stands for the device's events."""

    def __init__(self, *, caught_up: bool = True) -> None:
        self.caught_up = caught_up
        self.told: list[tuple[int, int]] = []

    def selected(self) -> AbstractContextManager[None]:
        return nullcontext()

    def has_caught_up(self) -> bool:
        return self.caught_up

    def probe(self) -> Still:
        return Still(time.perf_counter_ns(), None)

    def stood_still(self, still: Still, until: int) -> None:
        self.told.append((still.placed, until))


def watched(timer: Any, seconds: float, work: bool) -> tuple[int, int]:
    """Watch this process while it sleeps, or while another thread works. Return begin and end of that."""
    watch, over = StallWatch(timer), threading.Event()

    def turn() -> None:
        while not over.is_set():
            sum(range(1000))

    worker = threading.Thread(target=turn)
    if work:
        worker.start()
    begin = time.perf_counter_ns()
    watch.start()
    time.sleep(seconds)
    watch.close()
    end = time.perf_counter_ns()
    over.set()
    if work:
        worker.join()
    return begin, end


@pytest.mark.alone
def test_a_process_that_sleeps_stands_still() -> None:
    timer = Timer()
    begin, end = watched(timer, STALL_NS / 1e9, work=False)
    assert timer.told and all(begin <= placed <= until <= end for placed, until in timer.told)
    assert sum(until - placed for placed, until in timer.told) > STALL_NS / 4
    after = len(timer.told)
    time.sleep(0.05)
    assert len(timer.told) == after  # nothing looks any more


@pytest.mark.alone
def test_a_process_of_which_any_thread_works_does_not() -> None:
    timer = Timer()
    watched(timer, 0.3, work=True)
    assert sum(until - placed for placed, until in timer.told) < 30_000_000  # while that thread has no processor


def test_each_other_thread_is_asked_for_what_it_used() -> None:
    looks: list[dict[int, int]] = []
    until = time.monotonic() + 20

    def look() -> None:
        while time.monotonic() < until and not (looks and has_run(looks[0], looks[-1])):
            looks.append(used_by_thread())

    looker = threading.Thread(target=look)
    looker.start()
    while looker.is_alive():
        sum(range(1000))
    main = threading.get_native_id()
    assert all(main in one and looker.native_id not in one for one in looks)
    assert looks[0][main] + LAUNCH_NS < looks[-1][main]


def test_a_process_stands_still_only_if_the_same_threads_have_used_nothing() -> None:
    assert not has_run({7: 1_000, 8: 5_000}, {7: 1_500, 8: 5_500})
    assert has_run({7: 1_000, 8: 5_000}, {7: 1_500, 8: 9_000})
    assert has_run({7: 1_000, 8: 5_000}, {7: 1_000}) and has_run({7: 1_000}, {7: 1_000, 8: 0})
    assert has_run({}, {})  # the system lists none


def test_nothing_is_put_on_a_device_that_has_work() -> None:
    timer = Timer(caught_up=False)
    watched(timer, 0.1, work=False)
    assert not timer.told


@pytest.mark.parametrize(
    ("batch", "is_told"),
    [
        (torch.ones(2), True),
        ((torch.ones(2), {"text": ["a", "b"], "length": 2}), True),
        (None, True),
        (torch.ones(2, device="meta"), False),
        ([torch.ones(2), [torch.ones(2, device="meta")]], False),
        (UserDict(image=torch.ones(2)), True),
        (UserDict(image=torch.ones(2, device="meta")), False),
        (Overridden([torch.ones(2)]), True),
        (object(), False),  # nobody knows what it holds
    ],
)
def test_a_fetch_launches_nothing_if_its_batch_is_on_the_host(batch: object, is_told: bool) -> None:
    assert is_on_host(batch) is is_told
    timer: Any = Timer()
    fetches = Fetches(timer)
    fetches.begins()
    time.sleep(0.001)
    fetches.ends(batch)
    ((placed, until),) = timer.told
    assert (until > placed) is is_told
    fetches.ends(batch)  # of a fetch that began before
    assert len(timer.told) == 1
