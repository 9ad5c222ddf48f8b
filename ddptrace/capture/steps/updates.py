"""Which thread's doings are the training's, where several threads of a process run modules."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Final

from ddptrace.capture.by_identity import IdentityMap, IdentitySet
from ddptrace.capture.origins import frames
from ddptrace.schema import Phase

ANOTHER_TRAINING: Final = (
    "a thread trains a model of its own beside the first training: steps, phases and buckets are those of the first, "
    "of the other only the collectives are told"
)
OUTSIDE, DATA, FORWARD, BACKWARD = 0, int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
OPTIMIZER = int(Phase.OPTIMIZER)


class Here(threading.local):
    """What the calling thread does."""

    inside = OUTSIDE  # what nests in an outermost forward, backward or wait for data is a part of it
    forward: int | None = None  # begin of the outermost forward that runs
    trains = False  # it has begun a backward
    is_first = False  # it has run a backward and updated what the first training updates
    is_apart = False  # it trains something else


class FirstTraining:
    """A step is an update of one training: the one that makes the first update. `note` is told once of another one."""

    def __init__(self, here: Here, note: Callable[[str, str], None]) -> None:
        self._here = here
        self._note = note
        self._updated: IdentitySet[object] = IdentitySet()  # its optimizers and scalers
        self._thread: weakref.ReferenceType[threading.Thread] | None = None
        self._told = False

    def owns(self, updated: object) -> bool:
        """Whether an update that the calling thread has made is the first training's: known by what was updated; by the
        thread, where that has updated such before or runs no backward; or because there is no other any more."""
        here = self._here
        if updated in self._updated or here.is_first or not here.trains or not self._is_running():
            here.is_apart = False
            self._updated.add(updated)
            if here.trains and not here.is_first:
                here.is_first, self._thread = True, _calling_thread()
            return True
        here.is_apart = True
        self._tell()
        return False

    def _is_running(self) -> bool:
        """Whether the thread that runs it is known and still there."""
        thread = None if self._thread is None else self._thread()
        return thread is not None and thread.is_alive()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._note("another-training", ANOTHER_TRAINING)


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


def _calling_thread() -> weakref.ReferenceType[threading.Thread] | None:
    """None for a thread that Python did not start: `threading.current_thread()` would list it for ever."""
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return None if known is None else weakref.ref(known)


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
