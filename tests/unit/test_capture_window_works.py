"""Whether a collective of a window is over, where the backend's thread may need the interpreter's lock to say so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.futures import Future

from ddptrace.capture.collectives.completions import LEAVES_S, CollectivesInWindow


class Work:
    """Of a collective whose backend's thread waits for the interpreter's lock: who asks it waits for ever."""

    def __init__(self) -> None:
        self.future: Future[int] = Future()
        self.asked = 0

    def get_future(self) -> Future[int]:
        return self.future

    def is_completed(self) -> bool:
        self.asked += 1
        return self.future.done()


@pytest.mark.parametrize("hooked", [True, False])
def test_a_work_is_asked_only_where_no_hook_was_in_place_when_it_was_issued(hooked: bool) -> None:
    works, work = CollectivesInWindow(), Work()
    with torch.autograd.graph.save_on_cpu() if hooked else torch.no_grad():
        works.add(work)
    assert not works.are_over(0)
    work.future.set_result(1)
    assert works.are_over(5 * LEAVES_S)
    assert bool(work.asked) is not hooked


def test_a_thread_that_may_still_be_in_a_collective_is_given_time_to_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(at=100.0)
    monkeypatch.setattr("ddptrace.capture.collectives.completions.time.monotonic", lambda: now.at)
    works, work = CollectivesInWindow(), Work()
    with torch.autograd.graph.save_on_cpu():
        works.add(work)
    work.future.set_result(1)
    assert not works.are_over(0)
    now.at += LEAVES_S / 2
    assert not works.are_over(0)
    now.at += LEAVES_S
    assert works.are_over(0)
