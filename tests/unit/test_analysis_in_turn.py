"""Optimizers that take turns are told of, and others that are no reason to doubt the steps are not."""

from __future__ import annotations

import pytest

from ddptrace.analysis.rank_tables import optimizers_in_turn
from ddptrace.load.tables import StepMark
from ddptrace.schema import StepEnd

NAMES = {1: "Adam", 2: "SGD", 4: "AdamW", 3: "SGD"}


def turns(*bits: int, first: int = 0) -> tuple[str, ...]:
    """By step, which optimizers updated in it."""
    return optimizers_in_turn(
        StepMark(first + k, StepEnd.OPTIMIZER, 10 * k, 10 * k + 10, NAMES.get(one, f"number {one}"), one)
        for k, one in enumerate(bits)
    )


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        ((1, 2) * 2, ("Adam", "SGD")),
        ((2, 1) * 9, ("SGD", "Adam")),
        ((1, 1, 1, 1, 1, 2) * 4, ("Adam", "SGD")),  # a critic that updates five times
        ((1, 2, 4) * 3, ("Adam", "SGD", "AdamW")),
        ((1, 2, 2, 1, 2, 1, 1, 2), ("Adam", "SGD")),
        (((1, 2) * 3) + (4,), ("Adam", "SGD")),  # one that updates once has no turns
    ],
)
def test_optimizers_in_turn_are_named_in_the_order_of_their_turns(
    bits: tuple[int, ...], names: tuple[str, ...]
) -> None:
    assert turns(*bits) == names


@pytest.mark.parametrize(
    "bits",
    [
        (),
        (1,) * 20,
        (3,) * 20,  # together
        (1, 1, 1, 3) * 5,  # the second joins every fourth step
        (1, 2, 1, 3) * 5,
        (1, 2),  # too few to tell
        (1, 2, 1),
        (*(1,) * 30, *(2,) * 30),  # the training of one model after that of another
        (*(1,) * 30, *(2,) * 30) * 3,  # or by epochs
        tuple(2**k for k in range(31)) + (2**31,) * 30,  # a new optimizer in every step
        (0,) * 10,  # an older run: nobody told
    ],
)
def test_other_steps_are_no_turns(bits: tuple[int, ...]) -> None:
    assert turns(*bits) == ()


def test_steps_that_do_not_follow_one_another_tell_of_no_turns() -> None:
    marks = [StepMark(10 * k, StepEnd.OPTIMIZER, 10 * k, 10 * k + 10, "x", 1 + k % 2) for k in range(9)]
    assert optimizers_in_turn(marks) == ()
