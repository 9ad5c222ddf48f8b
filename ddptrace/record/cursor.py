"""Tracks how far one growing record file has been read.

slots    r r r . r r . r | . . .        .: empty, checked again until the file is finished
         ├── taken ─────┤
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import GUARD, Kind


class Cursor:
    """Reads slots as they are written.

    A slot is handed out before it is written, and its thread may lose the interpreter in between. So empty slots are
    checked again as long as the file grows.
    """

    def __init__(self) -> None:
        self.is_held_up = False
        """Some slots may be written in a moment, so that the next file must not be read before."""
        self._taken = 0  # slots, from the first
        self._passed = np.empty(0, np.intp)  # of these, those that were not whole
        self._met = np.empty(0, np.intp)  # slots that were not whole at the last look

    def take(self, slots: NDArray[np.void], *, growing: bool) -> tuple[NDArray[np.void], int]:
        """Return the slots that have become whole, and how many never will.

        While the file grows, a slot that is not whole delays the slots after it, but only at the first look.
        """
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
        """Count torn slots. The writer has already counted the empty ones that are a loss."""
        torn = int((slots["kind"][self._passed] != Kind.NONE).sum())
        self._passed = self._passed[:0]
        return torn


def _written_in_all(slots: NDArray[np.void]) -> int:
    """Return how many slots were handed out: all up to the last one that is not empty."""
    filled = np.flatnonzero(slots["kind"] != Kind.NONE)
    return int(filled[-1]) + 1 if len(filled) else 0
