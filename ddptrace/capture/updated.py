"""Which optimizers made the updates of a step: programs that train several models in turn have one for each."""

from __future__ import annotations

import contextlib
import itertools
import sys
from typing import Final

from ddptrace.capture import frames
from ddptrace.capture.by_identity import IdentityMap

MOST_NUMBERED: Final = 32
"""Bits of the field that tells them; further optimizers share the last."""


class Updated:
    """Of the step that runs. `text` tells the optimizer that updated last; `bits` has one for each that updated."""

    def __init__(self) -> None:
        self.text = ""
        self.bits = 0
        self._known: IdentityMap[object, tuple[int, str]] = IdentityMap()
        self._numbers = itertools.count()

    def by(self, optimizer: object) -> None:
        known = self._known.get(optimizer)
        if known is None:
            number = min(next(self._numbers), MOST_NUMBERED - 1)
            known = self._known[optimizer] = 1 << number, _described(optimizer)
        bit, self.text = known
        self.bits |= bit

    def clear(self) -> None:
        self.text, self.bits = "", 0


def _described(optimizer: object) -> str:
    """As in "Adam of 4 parameters at train.py:42 in train"; as far as it lets itself be known."""
    told = type(optimizer).__name__
    with contextlib.suppress(Exception):  # it is the program's own
        groups = getattr(optimizer, "param_groups", ())
        count = sum(len(group["params"]) for group in groups)
        told += f" of {count} parameter{'' if count == 1 else 's'}" if groups else ""
        line = frames.program_line(sys._getframe())
        told += f" at {line}" if line else ""
    return told
