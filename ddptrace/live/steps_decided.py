"""Which steps there are in the records so far, and by what they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import StepEnd

STEPS_TO_DECIDE: Final = {StepEnd.SAID: 1, StepEnd.OPTIMIZER: 4, StepEnd.BACKWARD: 64}
"""Steps of a kind after which it is taken for what ends steps in this program, if no stronger kind was seen. What ends
them first may be a part of the true step: the first backwards of an accumulation, a GAN's optimizer in turn."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a step. Times are monotonic, as recorded."""

    ordinal: int
    begin: int
    end: int
    recorded: bool


class StepsDecided:
    """What ends one program's steps, once and for all; `ended_by` is None while that is open."""

    def __init__(self) -> None:
        self.ended_by: StepEnd | None = None

    def marks(self, rows: NDArray[np.void], *, final: bool) -> list[Mark]:
        """By ordinal, of several records of one step the last; none while it is open what ends them. `rows`: STEP
        records as written; `final`: no more will come."""
        self._decide(rows, final=final)
        mine = rows[rows["flags"] == self.ended_by] if self.ended_by is not None else rows[:0]
        columns = (mine[name].tolist() for name in ("a", "begin", "end", "b"))
        last = {a: Mark(a, begin, end, not b) for a, begin, end, b in zip(*columns, strict=True)}
        return [mark for _, mark in sorted(last.items())]

    def _decide(self, rows: NDArray[np.void], *, final: bool) -> None:
        kinds = {StepEnd(flag) for flag in np.unique(rows["flags"]).tolist() if flag in set(StepEnd)}
        if self.ended_by is not None or not kinds:
            return
        strongest = max(kinds)
        steps = len(np.unique(rows["a"][rows["flags"] == strongest]))
        if final or steps >= STEPS_TO_DECIDE[strongest]:
            self.ended_by = strongest
