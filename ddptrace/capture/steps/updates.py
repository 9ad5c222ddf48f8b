"""Updates: which of them are the training's, if several threads of a process run modules, and which optimizers made
those of a step."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Final

from ddptrace.capture.by_identity import IdentityMap, IdentitySet
from ddptrace.capture.origins import frames
from ddptrace.capture.surface import tolerating
from ddptrace.findings import ANOTHER_TRAINING, FindingKind
from ddptrace.schema import Phase

OTHER_TRAINING: Final = (
    "a second thread trains another model: steps, phases and buckets are those of the first training, and only the "
    "collectives of the second are recorded"
)
OUTSIDE, DATA, FORWARD, BACKWARD = 0, int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
OPTIMIZER = int(Phase.OPTIMIZER)


class Here(threading.local):
    """What the calling thread is doing."""

    inside = OUTSIDE  # the outermost forward, backward or wait for data; what nests in it is a part of it
    forward: int | None = None  # begin of the outermost forward that runs
    trains = False  # it has begun a backward
    is_first = False  # it has run a backward and updated what the first training updates
    is_apart = False  # it trains something else


class FirstTraining:
    """The training whose updates are the steps: the one that makes the first update. `note` is called once if there is
    another one."""

    def __init__(self, here: Here, note: Callable[[FindingKind, str], None]) -> None:
        self._here = here
        self._note = note
        self._updated: IdentitySet[object] = IdentitySet()  # its optimizers and scalers
        self._thread: weakref.ReferenceType[threading.Thread] | None = None
        self._told = False

    def owns(self, updated: object) -> bool:
        """Whether an update by the calling thread is the first training's.

        It is if the first training has updated the same optimizer before, if the thread has made such updates before or
        runs no backwards, or if the thread of the first training has ended.
        """
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
        """Whether the thread that runs it is known and alive."""
        thread = None if self._thread is None else self._thread()
        return thread is not None and thread.is_alive()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._note(ANOTHER_TRAINING, OTHER_TRAINING)


MOST_NUMBERED: Final = 32
"""Bits of the field for optimizers; all further optimizers share the last bit."""


class Updated:
    """Which optimizers have updated in the running step. `text` describes the last one; `bits` has a bit for each."""

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
    """Return the calling thread; None if Python did not start it: `threading.current_thread()` would list it for
    ever."""
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return None if known is None else weakref.ref(known)


def _described(optimizer: object) -> str:
    """Describe an optimizer, as in "Adam of 4 parameters at train.py:42 in train"; leave out what raises."""
    words = type(optimizer).__name__
    with tolerating():  # the optimizer may be the program's own class
        groups = getattr(optimizer, "param_groups", ())
        count = sum(len(group["params"]) for group in groups)
        words += f" of {count} parameter{'' if count == 1 else 's'}" if groups else ""
        line = frames.program_line(sys._getframe())
        words += f" at {line}" if line else ""
    return words
