"""Medians, their intervals and quantiles, as every benchmark tells them."""

from __future__ import annotations

import random

import pytest

from ddptrace.bench.timing import ROUNDS_SURE, Spread, median_interval, quantile


def test_a_spread_tells_the_median_and_where_single_values_lie() -> None:
    spread = Spread.of([*range(100, -1, -1)])
    assert (spread.median, spread.q05, spread.q95) == (50, 5, 95)
    assert 35 < spread.low < 50 < spread.high < 65


def test_one_wild_value_moves_neither_the_median_nor_its_interval() -> None:
    calm, wild = ([10, 11, 12, 13, 14, 15, 16, 17, last] for last in (18, 10**9))
    assert (Spread.of(wild).median, Spread.of(wild).low) == (Spread.of(calm).median, Spread.of(calm).low)
    assert Spread.of(wild).high < 20


def test_one_value_is_its_own_median_and_interval() -> None:
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_the_same_values_give_the_same_interval_in_any_order() -> None:
    values = [random.Random(3).gauss(0, 1) for _ in range(15)]
    assert Spread.of(values) == Spread.of(values[::-1]) == Spread.of(values)


@pytest.mark.parametrize("rounds", [ROUNDS_SURE, 7, 9, 20, 21])
def test_the_interval_holds_the_true_median_at_least_nineteen_times_in_twenty(rounds: int) -> None:
    chance, held = random.Random(0), 0
    for _ in range(4000):
        low, high = median_interval([chance.gauss(0, 1) for _ in range(rounds)])
        held += low <= 0 <= high
    assert 0.945 <= held / 4000 < 0.995, "and does not hold it always: then it would be wider than it says"


def test_fewer_rounds_than_that_give_their_range() -> None:
    assert median_interval([3, 1, 2, 5, 4]) == (1, 5)


def test_a_quantile_is_one_of_the_values_and_its_ends_are_the_ends() -> None:
    assert [quantile([1, 2, 30], at) for at in (0, 0.5, 1)] == [1, 2, 30]
