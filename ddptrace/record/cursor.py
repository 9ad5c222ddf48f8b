"""How far one record file was read, while it grows.

slots    r r r . r r . r | . . .        .: passed over, and looked at again until the file is finished
         ├── taken ─────┤
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import GUARD, Kind


class Cursor:
    """A slot is handed out before it is written, and its thread may lose the interpreter in between: what was empty is
    looked at again as long as the file grows."""

    def __init__(self) -> None:
        self.is_held_up = False
        """There are slots in it that may be written in a moment: whatever lies in the next file was written later."""
        self._taken = 0  # slots, from the first
        self._passed = np.empty(0, np.intp)  # of these, those that were not whole
        self._met = np.empty(0, np.intp)  # slots that were not whole at the last look

    def take(self, slots: NDArray[np.void], *, growing: bool) -> tuple[NDArray[np.void], int]:
        """The slots that have become whole, and how many never will. While the file grows, a slot that is not whole
        holds up what comes after it, but only the first time that it is met."""
        whole = slots["guard"] == GUARD
        end = _written_in_all(slots)
        lacking = self._taken + np.flatnonzero(~whole[self._taken : end])
        first_met = lacking[~np.isin(lacking, self._met)] if growing else lacking[:0]
        self._met = lacking
        end = int(first_met[0]) if len(first_met) else end
        due = np.concatenate((self._passed[self._passed < len(slots)], np.arange(self._taken, end)))
        self._taken = max(end, self._taken)
        self._passed = due[~whole[due]]
        self.is_held_up = growing and self._taken < len(slots) - 1  # the last one is kept for the trailer
        found: NDArray[np.void] = slots[due[whole[due]]]
        return found, 0 if growing else self._give_up(slots)

    def _give_up(self, slots: NDArray[np.void]) -> int:
        """Those that are empty are no loss that the writer has not counted."""
        torn = int((slots["kind"][self._passed] != Kind.NONE).sum())
        self._passed = self._passed[:0]
        return torn


def _written_in_all(slots: NDArray[np.void]) -> int:
    """How many slots, from the first, were handed out: all up to the last that is not empty."""
    filled = np.flatnonzero(slots["kind"] != Kind.NONE)
    return int(filled[-1]) + 1 if len(filled) else 0
