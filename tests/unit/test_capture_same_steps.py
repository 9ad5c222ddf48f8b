"""Ranks agree on the steps of a profiler window through a store. Here they are threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from torch.distributed import HashStore

from ddptrace.capture.identity import Group
from ddptrace.capture.profiler.next_window import AHEAD_STEPS, Agreed, Place, SameSteps, Slowdown, Wish

MOST_S = 30.0
SLOWDOWN = Slowdown(3, 150, 100)


class Rank:
    def __init__(
        self, rank: int, size: int, store: Any, step: int = 40, step_ns: int = 10**8, last_ns: int = 10**8
    ) -> None:
        self.decided: list[Agreed] = []
        self.failures: list[str] = []
        self.step = step
        self.same = SameSteps(
            "trace",
            lambda: Place(self.step, step_ns, last_ns),
            self.decided.append,
            self.failures.append,
            lambda: Group(rank, size, store),
        )
        self.wish = Wish(step, 3, slowdown=SLOWDOWN)


@contextmanager
def started(ranks: list[Rank]) -> Iterator[None]:
    with ExitStack() as stack:
        for rank in ranks:
            stack.enter_context(closing(rank.same))
            rank.same.start()
        yield


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + MOST_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ranks_that_wish_at_the_same_time_agree_on_one_window() -> None:
    store = HashStore()
    ranks = [Rank(rank, 3, store, step=40 + rank) for rank in range(3)]
    with started(ranks):
        for rank in ranks[:2]:
            rank.same.want(rank.wish)
        wait_for(lambda: all(rank.same.due for rank in ranks))
        due = ranks[0].same.due
        assert due is not None
        assert [rank.same.due for rank in ranks] == [due] * 3
        assert [len(rank.decided) for rank in ranks].count(1) == 1, "one rank decides"
        assert (due.confirmed, due.size, due.last - due.begin) == (3, 3, 2)
        assert due.begin >= 42 + AHEAD_STEPS + 3, "of 0.3 s"
        for rank in ranks:  # the window begins: the losing wish is over, too
            rank.same.due = None
        time.sleep(0.5)
        assert [rank.same.due for rank in ranks] == [None] * 3
        ranks[2].same.want(ranks[2].wish)
        wait_for(lambda: all(rank.same.due for rank in ranks))
        assert ranks[2].decided == [ranks[0].same.due]


@pytest.mark.parametrize(("request_id", "ahead"), [("", 2), ("asked", 30)])
def test_a_slowdown_opens_a_window_soon_and_a_request_one_that_usual_steps_do_not_pass(
    request_id: str, ahead: int
) -> None:
    store = HashStore()
    ranks = [Rank(rank, 2, store, step_ns=10_100_000, last_ns=160_000_000) for rank in range(2)]
    with started(ranks):
        ranks[1].same.want(Wish(40, 3, request_id, None if request_id else SLOWDOWN))
        wait_for(lambda: all(rank.same.due for rank in ranks))
        assert {rank.same.due.begin for rank in ranks if rank.same.due is not None} == {40 + AHEAD_STEPS + ahead}


def test_a_rank_that_is_far_ahead_is_not_asked_to_go_back() -> None:
    store = HashStore()
    ranks = [Rank(0, 2, store), Rank(1, 2, store, step=5000)]
    with started(ranks):
        ranks[0].same.want(ranks[0].wish)
        wait_for(lambda: all(rank.same.due for rank in ranks))
        assert ranks[1].same.due is not None
        assert ranks[1].same.due.begin > 5000


def test_a_request_that_a_rank_sees_late_opens_no_second_window() -> None:
    store = HashStore()
    ranks = [Rank(rank, 2, store) for rank in range(2)]
    asked = Wish(40, 3, "request")
    with started(ranks):
        ranks[0].same.want(asked)
        wait_for(lambda: all(rank.same.due for rank in ranks))
        for rank in ranks:
            rank.same.due = None
            rank.same.want(asked)
        time.sleep(0.5)
        assert [rank.same.due for rank in ranks] == [None, None]


class Hanging(HashStore):
    """A store whose answers never come. `callers`: threads that have asked."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: set[int] = set()
        self.end = threading.Event()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:  # type: ignore[override]
        self.callers.add(threading.get_ident())
        self.end.wait()
        raise RuntimeError("it is gone")

    def check(self, keys: list[str]) -> bool:
        return bool(self.compare_set("", "", ""))


def test_a_store_that_hangs_holds_nobody_up_and_one_that_is_gone_is_asked_no_more() -> None:
    store = Hanging()
    rank = Rank(0, 2, store)
    rank.same.want(rank.wish)
    wait_for(lambda: store.callers)
    rank.same.want(rank.wish)
    assert rank.same.due is None
    assert threading.get_ident() not in store.callers
    store.end.set()
    wait_for(lambda: rank.failures)
    assert "failed (RuntimeError)" in rank.failures[0]
    store.callers.clear()
    rank.same.want(rank.wish)
    time.sleep(0.3)
    assert not store.callers
    rank.same.close()


def test_the_end_of_a_trace_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptrace.capture.profiler.next_window.CLOSE_S", 0.1)
    store = Hanging()
    rank = Rank(0, 2, store)
    rank.same.want(rank.wish)
    wait_for(lambda: store.callers)
    rank.same.close()
    assert rank.failures == []
    store.end.set()


def test_ranks_without_a_store_say_so_and_a_single_rank_needs_none() -> None:
    several, single = Rank(0, 2, None), Rank(0, 1, None)
    with started([several, single]):
        several.same.want(several.wish)
        single.same.want(single.wish)
        wait_for(lambda: several.failures and single.same.due)
        assert single.same.due is not None
        assert single.same.due.begin == 40 + AHEAD_STEPS
        assert several.same.due is None
