"""How several things are timed side by side, on a clock that stands still but for what the things themselves take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ddptrace.bench import timing
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.timing import Spread, interleaved, ratio, spread


class Rank:
    """A job of which one rank is here. `events`: what happened, in order; `now_ns`: the clock. The device ends what was
    launched only when it is waited for, and the other rank takes as long as this one and `late_ns` more."""

    def __init__(self, late_ns: int = 0) -> None:
        self.events, self.now_ns, self._launched_ns, self._late_ns = list[str](), 0, 0, late_ns

    def launch(self, name: str, ns: int) -> None:
        self.events.append(name)
        self._launched_ns += ns

    def finish(self) -> None:
        self.now_ns += self._launched_ns
        self._launched_ns = 0

    def meet(self) -> None:
        self.finish()
        self.events.append("meet")
        self.now_ns += 1_000_000  # is not to be in any time

    def slowest(self, times_ns: Sequence[int]) -> list[int]:
        return [ns + self._late_ns for ns in times_ns]

    def say(self, text: str) -> None:
        self.events.append(text)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    made = Rank()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter_ns=lambda: made.now_ns))
    return made


def timed(rank: Any, names: str, repeats: Repeats, **around: Any) -> dict[str, list[list[int]]]:
    """Each thing takes 10 ns more than the thing before it, and each call 1 ns more than the call before it."""
    calls = dict.fromkeys(names, 0)

    def thing(name: str) -> None:
        calls[name] += 1
        rank.launch(name, 10 * (1 + names.index(name)) + calls[name])

    return interleaved(rank, {name: lambda name=name: thing(name) for name in names}, repeats, **around)  # type: ignore[misc]


def test_what_is_timed_is_each_call_after_the_warm_up_to_its_end_on_the_device(rank: Rank) -> None:
    # calls 1 and 2 of a round warm up, 3, 4 and 5 are timed; the second round goes on with call 6
    assert timed(rank, "ab", Repeats(rounds=2, steps=3, warmup=2)) == {
        "a": [[13, 14, 15], [18, 19, 20]],
        "b": [[23, 24, 25], [28, 29, 30]],
    }


def test_the_slowest_ranks_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Rank(late_ns=1000)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter_ns=lambda: late.now_ns))
    assert timed(late, "a", Repeats(1, 2, 0)) == {"a": [[1011, 1012]]}


def test_ranks_meet_before_each_timed_call_and_not_within_a_warm_up(rank: Rank) -> None:
    timed(rank, "a", Repeats(rounds=1, steps=2, warmup=2))
    assert rank.events == ["a", "a", "meet", "a", "meet", "a", "round 1 of 1"]


def test_every_round_has_all_things_in_blocks_and_the_order_changes(rank: Rank) -> None:
    timed(rank, "abc", Repeats(rounds=30, steps=2, warmup=1))
    text = "".join(event if len(event) == 1 else "|" * event.startswith("round") for event in rank.events)
    rounds = text.split("|")[:-1]
    assert len(rounds) == 30 and all(len(one) == 9 for one in rounds)
    orders = {one[::3] for one in rounds}
    assert all(one == "".join(3 * name for name in one[::3]) for one in rounds), "warm-up and steps side by side"
    assert orders == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_the_same_order_is_drawn_on_every_rank(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(rank, "abcd", Repeats(5, 1, 0))
    first, rank.events = rank.events, []
    timed(rank, "abcd", Repeats(5, 1, 0))
    assert rank.events == first


def test_each_things_warm_up_and_steps_of_a_round_are_inside_its_context(rank: Rank) -> None:
    @contextmanager
    def around(name: str, round_: int) -> Iterator[None]:
        rank.events.append(f"<{name}{round_}")
        yield
        rank.events.append(f"{name}{round_}>")

    timed(rank, "a", Repeats(rounds=2, steps=1, warmup=1), around=around)
    assert [event for event in rank.events if "meet" not in event and "round" not in event] == [
        "<a0",
        "a",
        "a",
        "a0>",
        "<a1",
        "a",
        "a",
        "a1>",
    ]


def test_a_ratio_is_of_the_medians_of_one_round_and_the_median_over_the_rounds() -> None:
    slow, fast = [[10, 90, 20], [40, 40], [9, 300]], [[10, 10, 500], [80, 80], [103]]
    # medians 20, 40, 154.5 against 10, 80, 103
    assert ratio(slow, fast) == Spread(1.5, 0.5, 2.0, 0.5, 2.0, 3)


def test_a_ratio_compares_round_by_round_so_that_a_slower_machine_slows_both() -> None:
    machine = (1, 3, 10, 2, 7, 5)
    found = ratio([[12 * slow] for slow in machine], [[10 * slow] for slow in machine])
    assert (found.low, found.median, found.high) == pytest.approx((1.2, 1.2, 1.2))


def test_rounds_that_do_not_pair_are_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([[1], [2]], [[1]])


def test_a_spread_is_of_the_rounds_medians() -> None:
    assert spread([[1, 2, 300], [4, 4, 4, 4], [9, 7]]) == Spread(4, 2, 8, 2, 8, 3)
