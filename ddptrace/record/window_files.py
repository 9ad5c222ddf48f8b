"""The profiler's files in a rank's folder, and the stretch of records that each one protects.

records   ┄┄┄┄┄┄┄┄┄[==margin==|=====window=====|==margin==]┄┄┄┄┄┄┄┄┄
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.record.thin import Span

MARGIN_NS: Final = 10_000_000_000
"""The most that is protected before and after a window: steps that reach into it are seldom longer."""

NOTHING: Final[Span] = (0, -1)


@dataclass(frozen=True, slots=True)
class _Window:
    """`spans`: stretches of records that may be protected, the longest first; the first one applies."""

    file: str
    spans: tuple[Span, ...]


class WindowFiles:
    """The files, oldest first. `tell_gone(number, count)` records that one was deleted, the `count`-th so far."""

    def __init__(self, folder: Callable[[], Path], tell_gone: Callable[[int, int], None]) -> None:
        self._folder = folder  # it may be renamed meanwhile
        self._tell_gone = tell_gone
        self._gone = 0
        self._windows: dict[int, _Window] = {}  # by the id of the file's name; other threads add to it

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, number: int, file: str, begin: int, end: int) -> None:
        """Add a file that lies in the folder now; begin and end of its window are 0 if unknown."""
        self._windows[number] = _Window(file, _spans(begin, end))

    def spans(self) -> dict[int, Span]:
        """Return from when to when records stay, by the id of the file's name."""
        return {number: window.spans[0] for number, window in list(self._windows.items())}

    def nbytes(self) -> int:
        files = {window.file for window in list(self._windows.values())}
        with os.scandir(self._folder()) as entries:
            return sum(size(entry) for entry in entries if entry.name in files)

    def drop_oldest(self) -> None:
        """Delete the oldest file. Its records are deleted in the next thinning."""
        number = next(iter(tuple(self._windows)))  # training may add one meanwhile
        self._gone += 1
        self._tell_gone(number, self._gone)  # first, since a file missing without a record would count as damage
        (self._folder() / self._windows.pop(number).file).unlink(missing_ok=True)

    def pin_less(self) -> bool:
        """Protect fewer records: drop the oldest margins first, then the oldest files, but never the newest file.

        Returns False if nothing is left to drop.
        """
        windows = list(self._windows.items())
        wide = next((number for number, window in windows if len(window.spans) > 2), None)
        if wide is not None:
            self._narrow(wide)
        elif len(windows) > 1:
            self.drop_oldest()
        elif windows and len(windows[0][1].spans) > 1:
            self._narrow(windows[0][0])
        else:
            return False
        return True

    def _narrow(self, number: int) -> None:
        window = self._windows[number]
        self._windows[number] = dataclasses.replace(window, spans=window.spans[1:])


def _spans(begin: int, end: int) -> tuple[Span, ...]:
    """Make the spans of a window. Its margins are as long as the window, as the steps around it are about that long."""
    length = end - begin
    if begin <= 0 or length <= 0:
        return (NOTHING,)
    margin = min(length, MARGIN_NS)
    return (begin - margin, end + margin), (begin, end), NOTHING


def size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # it was deleted meanwhile
        return 0
