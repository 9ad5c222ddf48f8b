"""When the order in which gradients become ready is worth a new plan, and which layers a step drops."""

from __future__ import annotations

import pytest

from ddptrace.errors import DdptraceError
from ddptrace.reducer import LayerDrop
from ddptrace.reducer.layout import PATIENCE, ReadyOrder
from ddptrace.reducer.same_training import difference


def test_the_first_backward_gives_the_first_order() -> None:
    order = ReadyOrder()
    assert order.ready is None and not order.is_first
    order.close([2, 0, 1])
    assert order.ready == [2, 0, 1] and order.is_first


def test_an_order_has_drifted_when_the_same_other_one_came_often_enough_in_a_row() -> None:
    # GIVEN a plan
    order = ReadyOrder()
    order.close([2, 1, 0])
    order.plan_made([2, 1, 0])
    # WHEN another order comes now and then, it has not drifted
    for _ in range(PATIENCE):
        order.close([0, 1, 2])
        order.close([2, 1, 0])
    assert not order.has_drifted
    # WHEN it keeps coming, it has, with the backward that makes it often enough
    told = []
    for _ in range(PATIENCE):
        order.close([0, 1, 2])
        told.append(order.has_drifted)
    assert told == [False] * (PATIENCE - 1) + [True]
    # THEN a new plan ends it
    order.plan_made([0, 1, 2])
    assert not order.has_drifted


def test_orders_that_change_all_the_time_are_no_drift() -> None:
    order = ReadyOrder()
    order.plan_made([2, 1, 0])
    for number in range(4 * PATIENCE):
        order.close([0, 1, 2] if number % 2 else [1, 0, 2])
    assert not order.has_drifted


def test_dropping_is_the_same_everywhere_and_as_frequent_as_asked() -> None:
    drop, twin = LayerDrop(0.25, seed=7), LayerDrop(0.25, seed=7)
    chosen = [drop.chosen(step, 20) for step in range(500)]
    assert chosen == [twin.chosen(step, 20) for step in range(500)]
    assert chosen != [LayerDrop(0.25, seed=8).chosen(step, 20) for step in range(500)]
    assert sum(map(len, chosen)) == pytest.approx(0.25 * 20 * 500, rel=0.1)
    assert LayerDrop(0, seed=7).chosen(3, 20) == []


@pytest.mark.parametrize("probability", [-0.1, 1.0, 2.0])
def test_a_probability_that_drops_all_or_is_none_is_refused(probability: float) -> None:
    with pytest.raises(DdptraceError, match="at least 0 and below 1"):
        LayerDrop(probability, seed=0)


def test_the_first_difference_is_named_and_a_list_that_ends_early_is_one() -> None:
    assert difference(1, ["a", "b"], ["a", "b"]) == ""
    assert "Rank 2 has c where rank 0 has b" in difference(2, ["a", "c", "d"], ["a", "b", "e"])
    assert "Rank 1 has nothing where rank 0 has b" in difference(1, ["a"], ["a", "b"])
