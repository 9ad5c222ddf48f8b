"""Finds the steps in the records so far, and what ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import StepEnd

STEPS_TO_DECIDE: Final = {StepEnd.SAID: 1, StepEnd.OPTIMIZER: 4, StepEnd.BACKWARD: 64}
"""How many steps of a kind decide that it ends steps in this program, if there is no stronger kind. The first ends may
be parts of the true step: the first backwards of an accumulation, or one of a GAN's optimizers."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a step. Times are monotonic, as recorded."""

    ordinal: int
    begin: int
    end: int
    recorded: bool


class StepsDecided:
    """Decides once what ends a program's steps; `ended_by` is None until then."""

    def __init__(self) -> None:
        self.ended_by: StepEnd | None = None

    def marks(self, rows: NDArray[np.void], *, final: bool) -> list[Mark]:
        """Return the ends of steps, by ordinal; none until it is decided what ends steps.

        Of several records of one step, the last one counts. `rows`: STEP records as written; `final`: no more will
        come.
        """
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
