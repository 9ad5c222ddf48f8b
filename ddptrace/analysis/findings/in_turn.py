"""Optimizers that take turns, as those of a GAN do: each update is a step, and so an iteration several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, pairwise
from typing import Final

from ddptrace.load.tables import StepMark

MOST_IN_A_ROW: Final = 6
"""So many steps, on average, one optimizer may make before it is another's turn. After more, they are parts of the
training, one after another, and no iteration has updates of both."""


def optimizers_in_turn(steps: Iterable[StepMark]) -> tuple[str, ...]:
    """The optimizers, as the steps tell them, in the order of their first turns; none where they take no turns. Those
    that update together, always or now and then, take none either."""
    marks = sorted((mark for mark in steps if mark.optimizers), key=lambda mark: mark.ordinal)
    counts = Counter(mark.optimizers for mark in marks)
    turns = [bits for bits, count in counts.items() if count > 1]
    if len(turns) < 2 or any(one & other for one, other in combinations(counts, 2)):
        return ()
    following = [(a, b) for a, b in pairwise(marks) if b.ordinal == a.ordinal + 1]
    changes = sum(a.optimizers != b.optimizers for a, b in following)
    if changes < 2 * len(turns) - 1 or len(following) > MOST_IN_A_ROW * changes:
        return ()
    names = {mark.optimizers: mark.optimizer for mark in reversed(marks)}
    return tuple(names[bits] for bits in turns)
