"""What is a slowdown, and what is the usual jitter of a training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from ddptrace.capture.profiler.next_window import Slowdown, SlowSteps

MS = 10**6


def found(lengths: Iterable[float], factor: float = 1.3) -> list[tuple[int, Slowdown]]:
    """Slowdowns, with the ordinals of the steps that complete them."""
    slow = SlowSteps(factor)
    return [(step, told) for step, length in enumerate(lengths) if (told := slow.add(round(length))) is not None]


def healthy(
    steps: int, seed: int, *, noise: float = 0.05, outliers: float = 0.01, every: int = 100, checkpoint: int = 250
) -> Iterator[float]:
    """Steps of 100 ms; `every` so many with an evaluation of 2 s, others with a checkpoint; single late ones."""
    chance = random.Random(seed)
    for step in range(steps):
        length = 100 * MS * chance.lognormvariate(0, noise)
        if chance.random() < outliers:
            length *= chance.uniform(1.3, 5)
        if step % every == every - 1:
            length += 2000 * MS
        if step % checkpoint == checkpoint - 1:
            length += 800 * MS
        yield length if step > 3 else 10 * length  # compiles, allocates


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
@pytest.mark.parametrize("every", [20, 100])
def test_ten_thousand_healthy_steps_have_no_slowdown(noise: float, every: int) -> None:
    assert found(healthy(10_000, 1, noise=noise, every=every)) == []


def test_batches_of_two_lengths_are_no_slowdown() -> None:
    chance = random.Random(3)
    assert found((200 if chance.random() < 0.3 else 100) * MS * chance.uniform(0.95, 1.05) for _ in range(10_000)) == []


def test_steps_that_slow_down_for_good_are_found_at_the_third() -> None:
    for seed in range(20):
        at = random.Random(seed).randrange(60, 400)
        # evaluations are further apart than the longest run here, so that only the slowdown is tested
        lengths = list(healthy(at + 200, seed, noise=0.02, outliers=0, every=1000, checkpoint=150))
        [(step, told)] = found(length * (1.5 if at <= ordinal else 1) for ordinal, length in enumerate(lengths))
        assert step in (at + 1, at + 2), "a checkpoint just before it counts as one of the three"
        assert told.steps == 3
        assert told.slow_ns / told.usual_ns == pytest.approx(1.5, rel=0.1)


def test_short_steps_that_are_held_up_for_a_moment_are_no_slowdown() -> None:
    """Twelve steps of 4 ms take 8 ms while another process runs; that it goes on for a quarter of a second is one."""
    assert found(4 * MS * (2 if 500 <= step < 512 else 1) for step in range(1000)) == []
    [(step, told)] = found(4 * MS * (2 if step >= 500 else 1) for step in range(1000))
    assert (step, told.steps) == (531, 32)


def test_a_run_with_frequent_evaluations_needs_more_steps_in_a_row() -> None:
    lengths = list(healthy(460, 5, outliers=0, every=20, checkpoint=1000))
    [(step, told)] = found(length * (1.5 if ordinal >= 401 else 1) for ordinal, length in enumerate(lengths))
    assert (step, told.steps) == (404, 4)


def test_the_same_slowdown_is_found_once_and_a_second_one_again() -> None:
    lengths = [100 * MS] * 100 + [150 * MS] * 100 + [225 * MS] * 100
    assert [step for step, _ in found(lengths)] == [102, 202]


def test_faster_steps_and_the_way_back_to_usual_are_no_slowdown() -> None:
    assert found([100 * MS] * 100 + [50 * MS] * 2 + [100 * MS] * 50 + [60 * MS] * 100) == []


def test_a_slowdown_below_the_factor_is_none() -> None:
    lengths = [100 * MS] * 100 + [125 * MS] * 100
    assert found(lengths) == []
    assert [step for step, _ in found(lengths, factor=1.2)] == [102]


def test_nothing_is_judged_before_the_usual_length_is_known() -> None:
    assert found([10 * MS] * 8 + [100 * MS] * 300) == [], "as where the first steps only fill a device's queue"
    assert [step for step, _ in found([100 * MS] * 30 + [150 * MS] * 5)] == [32]
