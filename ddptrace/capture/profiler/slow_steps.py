"""Notices that steps have become slower than they usually are.

lengths   ▂▂▂▃▂▂█▂▂▂▃▂▂▂█▂▂▂▃▂▂▂▂▆▆▆          usual: the median of the steps before; bar: that times a factor
bar       ----------------------------         a checkpoint or an evaluation exceeds it in a single step
in a row        1       1         123          the third one in a row is a slowdown

Three in a row are enough in a steady run. If a share p of the usual steps exceeds the bar by itself, n in a row happen
by chance with p**n, so it takes as many as make this rarer than `CHANCE`, and more than the run has had in a row
before. After a slowdown, what is usual is learned anew.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Final

FIRST_STEPS: Final = 5
"""Not judged: programs compile, allocate and fill their queues in them."""

LEAST_USUAL: Final = 25
MOST_USUAL: Final = 200
"""Steps that tell what is usual."""

LOOK_EVERY: Final = 50
"""Steps after which what is usual is looked at again: it takes as long as recording a few collectives."""

LEAST_IN_A_ROW: Final = 3
CHANCE: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Slowdown:
    """`slow_ns`: median of the steps in a row that are longer; `usual_ns`: of those before."""

    steps: int
    slow_ns: int
    usual_ns: int


class SlowSteps:
    """Takes the length of each step, and tells when the steps have become longer by `factor`."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.restart()

    def restart(self) -> None:
        """Learn anew what is usual."""
        self._usual = deque[int](maxlen=MOST_USUAL)
        self._in_a_row: list[int] = []
        self._first = FIRST_STEPS
        self._until_look = LEAST_USUAL
        self._usual_ns = 0
        self._bar = math.inf
        self._needed = LEAST_IN_A_ROW

    def add(self, length: int) -> Slowdown | None:
        """Take the length of the step that has just ended, in ns. Return a slowdown at the step that completes it."""
        if length >= self._bar:
            self._in_a_row.append(length)
            return self._slowdown() if len(self._in_a_row) >= self._needed else None
        if self._first:
            self._first -= 1
            return None
        if self._in_a_row:
            self._usual.extend(self._in_a_row)
            self._in_a_row.clear()
        self._usual.append(length)
        self._until_look -= 1
        if not self._until_look:
            self._look()
        return None

    def _slowdown(self) -> Slowdown:
        found = Slowdown(len(self._in_a_row), round(median(self._in_a_row)), self._usual_ns)
        self.restart()
        return found

    def _look(self) -> None:
        self._until_look = LOOK_EVERY
        self._usual_ns = round(median(self._usual))
        bar = self._bar = self._factor * self._usual_ns
        stretches = [sum(1 for _ in group) for is_long, group in groupby(self._usual, bar.__le__) if is_long]
        share = (sum(stretches) + 0.5) / len(self._usual)
        by_chance = math.ceil(math.log(CHANCE) / math.log(share))
        self._needed = max(LEAST_IN_A_ROW, by_chance, max(stretches, default=0) + 1)
