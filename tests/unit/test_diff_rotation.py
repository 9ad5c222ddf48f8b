"""What chance does, held against Student's test where that is exact, and against equal sides where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from ddptrace.analysis.diff.changes import ROTATIONS, against_chance

AFTER = np.array([False] * 4 + [True] * 4)
ONE = np.array([1.0, 2, 3, 4, 3, 4, 5, 6])[:, None]
"""Student: t = 2 / sqrt(5/3 / 2) = 2.191 with 6 degrees of freedom, p = 0.0710; 95 % reach 2.447 * 0.9129 = 2.234."""


def test_one_quantity_is_students_test() -> None:
    found = against_chance(ONE, AFTER, None)
    assert found is not None
    assert found.p[0] == pytest.approx(0.0710, abs=0.006)
    assert found.reach[0] == pytest.approx(2.234, rel=0.001)
    assert found.joint_p[0] == found.p[0]


def test_runs_in_pairs_are_students_test_of_their_differences() -> None:
    # differences 1, 2, 3, 2: mean 2, t = 2 / (0.8165 / 2) = 4.899 with 3 degrees of freedom: p = 0.0163, reach 1.299
    values = np.array([10.0, 20, 30, 40, 11, 22, 33, 42])[:, None]
    found = against_chance(values, AFTER, np.array([0, 1, 2, 3] * 2))
    assert found is not None
    assert found.p[0] == pytest.approx(0.0163, abs=0.003)
    assert found.reach[0] == pytest.approx(1.299, rel=0.001)


def test_one_run_is_held_against_several() -> None:
    # the mean of 1, 2, 3 is 2; 8 lies 6 above it: t = 6 / (1 * sqrt(1 + 1/3)) = 5.196 with 2 degrees of freedom
    found = against_chance(np.array([1.0, 2, 3, 8])[:, None], np.array([False, False, False, True]), None)
    assert found is not None
    assert found.p[0] == pytest.approx(0.0351, abs=0.005)


def test_the_same_quantity_again_and_again_costs_nothing() -> None:
    found = against_chance(np.repeat(ONE, 30, axis=1), AFTER, None)
    assert found is not None
    assert np.allclose(found.joint_p, found.p, atol=1e-9)


def test_many_quantities_that_have_nothing_in_common_are_less_sure_together() -> None:
    noise = np.random.default_rng(5).normal(size=(8, 20))
    found = against_chance(np.hstack([ONE, noise]), AFTER, None)
    assert found is not None
    assert found.p[0] == pytest.approx(0.0710, abs=0.006)
    assert 1 - 0.929**14 < found.joint_p[0] <= 1
    assert (found.joint_p >= found.p).all()


def test_among_equal_sides_the_surest_of_forty_quantities_is_sure_once_in_twenty() -> None:
    random, alarms, tries = np.random.default_rng(1), 0, 200
    shared = random.normal(size=(12, 40))
    for _ in range(tries):
        values = random.normal(size=(12, 12)) @ shared + random.normal(size=(12, 40)) + 100
        found = against_chance(values, np.arange(12) % 2 == 0, None)
        assert found is not None
        alarms += bool((found.joint_p < 0.05).any())
    assert 2 <= alarms <= 18  # 10 are due; a fair coin of 1 in 20 leaves this range in 1 of 100 such tests


def test_a_quantity_that_is_always_the_same_does_not_differ() -> None:
    found = against_chance(np.hstack([ONE, np.full((8, 1), 7.3)]), AFTER, None)
    assert found is not None
    assert (found.p[1], found.reach[1]) == (1.0, 0.0)


def test_sides_without_any_noise_differ_as_surely_as_can_be_told() -> None:
    found = against_chance(np.where(AFTER, 5.0, 4.0)[:, None], AFTER, None)
    assert found is not None
    assert found.p[0] == 1 / (ROTATIONS + 1)
    assert found.reach[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("runs", [2, 1])
def test_two_runs_tell_nothing_of_chance(runs: int) -> None:
    assert against_chance(ONE[:runs], AFTER[-runs:], None) is None


def test_the_same_runs_give_the_same_answer() -> None:
    one, other = against_chance(ONE, AFTER, None), against_chance(ONE, AFTER, None)
    assert one is not None and other is not None
    assert (one.p[0], one.reach[0]) == (other.p[0], other.reach[0])
