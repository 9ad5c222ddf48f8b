"""A rank's folder while it is written: makes record files ahead, thins the oldest, and keeps the records that a
profiler file needs.

records-00012.bin   thinned: it stands for 0 to 12, see `schema.Kind.LET_GO`
records-00013.bin   sealed
records-00014.bin   being filled
records-00015.bin   spare

A thinned file replaces the newest file that it stands for in one rename; only then are the older ones removed. So if
the process dies, every file is whole, and a reader skips the files that a thinned file stands for. Only if the disk has
no room for the new file, the thinned records overwrite the old one.

Each of the profiler's files in the folder protects a stretch of records:

records   ┄┄┄┄┄┄┄┄┄[==margin==|=====window=====|==margin==]┄┄┄┄┄┄┄┄┄
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ddptrace.findings import DISK_SHORT, FindingKind
from ddptrace.record.segment import SEGMENT_NBYTES, Dropped, Segment, trailer
from ddptrace.record.thin import DESCRIBING, Slots, Span, Wanted, last_so_far, thinned
from ddptrace.schema import EVENT_DTYPE, GUARD, META, RECORD_NBYTES, Kind, segment_index, segment_name
from ddptrace.trace_options import Keep

SEGMENTS: Final = 16
"""Number of record files in a rank's folder, if that makes them smaller than SEGMENT_NBYTES."""

MOST_THINNED: Final = 7
MOST_LASTING: Final = 21
MOST_WINDOWS: Final = 2
"""Divisors of the limit: the shares of the thinned file, of the records in it that are never deleted, and of the
profiler's files. While one thinned file replaces another, both exist, beside three segments. Counts by group, and a
text that is being written, may take as much as the records that are never deleted."""

RESERVE_RATIO: Final = 0.05
RESERVE_NBYTES: Final = 1 << 30
"""The smaller of the two is left free on the file system, so that the program's checkpoints do not fail."""

FIRST: Final = 2
"""This many segments are made however little room there is. From then on, the oldest can be thinned instead."""

THINNING: Final = "thinning.new"

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

MARGIN_NS: Final = 10_000_000_000
"""The most that is protected before and after a window: steps that reach into it are seldom longer."""

NO_SPAN: Final[Span] = (0, -1)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A finished segment. `newest`: by kind of step end, the newest step that ended in it or before, -1 for none.
    `thinned_nbytes`: its maximum size once thinned."""

    index: int
    newest: dict[int, int]
    thinned_nbytes: int


class Store:
    """The files of one rank. Only `windows.add` and `free_nbytes` may be called by several threads at a time.

    `note(kind, message)` records a finding; `tell_gone`: see `WindowFiles`.
    """

    def __init__(
        self,
        folder: Callable[[], Path],
        keep: Keep,
        note: Callable[[FindingKind, str], None],
        tell_gone: Callable[[int, int], None],
    ) -> None:
        self.segment_nbytes = min(SEGMENT_NBYTES, keep.nbytes // SEGMENTS & -4096)
        self.lasting_records = keep.nbytes // MOST_LASTING // RECORD_NBYTES
        self._folder = folder  # it may be renamed meanwhile
        self._keep = keep
        self._note = note
        self._made = 0
        self._sealed: list[_Sealed] = []  # oldest first, without thinned ones
        self._thinned: int | None = None  # index of the file that stands for all before it
        self._thinned_nbytes = 0
        self._dropped = Dropped()
        self._newest: dict[int, int] = {}
        self.windows = WindowFiles(folder, tell_gone)
        self._short_noted = False

    def make(self, unpaired: Collection[int]) -> Segment:
        """Make a new segment. If the limit requires it, thin the oldest ones first.

        `unpaired`: see `thin.Wanted`. Raises OSError if there is no room and nothing left to thin.
        """
        while self._is_full() and self._let_go(unpaired):
            pass
        in_place = False  # of a thinned one, so that the disk does not get fuller
        while True:
            try:
                return self._make(in_place)
            except OSError as error:
                if error.errno not in NO_ROOM or not self._let_go(unpaired):
                    raise
                in_place = True
                self._note_short(error)

    def seal(self, segment: Segment, dropped: Dropped) -> None:
        """Finish a full segment. It is unmapped, so no thread may be writing into it."""
        steps, thinned_nbytes = _look(segment)
        for ended_by, ordinal in steps:
            self._newest[ended_by] = max(ordinal, self._newest.get(ended_by, -1))
        segment.seal(segment.room // RECORD_NBYTES, dropped=dropped, final=False)
        segment.close()
        self._dropped = dropped
        self._sealed.append(_Sealed(segment_index(segment.name), dict(self._newest), thinned_nbytes))

    def tidy(self, unpaired: Collection[int]) -> None:
        """Delete profiler files beyond their share, and thin segments that are too old or beyond the limit.

        The newest profiler file stays however large it is, since the user asked for it.
        """
        while len(self.windows) > 1 and self.windows.nbytes() > self._keep.nbytes // MOST_WINDOWS:
            self.windows.drop_oldest()
        while self._sealed and (self._is_old(self._sealed[0]) or self._nbytes() > self._keep.nbytes):
            self._let_go(unpaired)

    # Room ------------------------------------------------------------------------------------------------------------

    def _make(self, in_place: bool) -> Segment:
        if not in_place and self._made >= FIRST and self.free_nbytes() < self.segment_nbytes:
            raise OSError(errno.ENOSPC, "the rest is reserved for the program")
        path = self._folder() / segment_name(self._made)
        try:
            segment = Segment(path, self.segment_nbytes)
        except OSError as error:
            if not in_place or error.errno not in NO_ROOM:
                raise
            segment = Segment(path, self.segment_nbytes // 2)  # the thinned file takes some of the room
        self._made += 1
        return segment

    def _is_full(self) -> bool:
        """Whether there is no room for another segment, and for thinning the oldest one beside it."""
        describing = self._thinned_nbytes + sum(one.thinned_nbytes for one in self._sealed)
        slack = min(describing, self._keep.nbytes // MOST_THINNED) + self.segment_nbytes // 4
        return self._made >= FIRST and self._nbytes() + self.segment_nbytes + slack > self._keep.nbytes

    def _nbytes(self) -> int:
        """Return the size of the folder. Profiler files count up to their share: no record is deleted for a larger one,
        nor for the plain file that a profiler writes before it is compressed."""
        with os.scandir(self._folder()) as entries:
            records = sum(
                _entry_nbytes(entry) for entry in entries if segment_index(entry.name) >= 0 or entry.name == META
            )
        return records + min(self.windows.nbytes(), self._keep.nbytes // MOST_WINDOWS)

    def free_nbytes(self) -> int:
        """Return how much of the file system may be used."""
        disk = os.statvfs(self._folder())
        reserve = min(int(disk.f_blocks * disk.f_frsize * RESERVE_RATIO), RESERVE_NBYTES)
        return disk.f_bavail * disk.f_frsize - reserve

    def _note_short(self, error: OSError) -> None:
        if not self._short_noted:
            self._short_noted = True
            message = f"the disk is full ({error.strerror}): from here on, new records replace the oldest"
            self._note(DISK_SHORT, message)

    # Letting go ------------------------------------------------------------------------------------------------------

    def _is_old(self, sealed: _Sealed) -> bool:
        """Whether enough whole steps came after it, by the strongest kind of step end."""
        if self._keep.steps is None or not self._newest:
            return False
        ended_by = max(self._newest)
        return self._newest[ended_by] - sealed.newest.get(ended_by, -1) > self._keep.steps

    def _let_go(self, unpaired: Collection[int]) -> bool:
        """Thin the oldest segment into the file that stands for all before it. Returns False if there is none."""
        if not self._sealed:
            return False
        folder, oldest = self._folder(), self._sealed[0]
        files = [folder / segment_name(index) for index in (self._thinned, oldest.index) if index is not None]
        if files[-1].stat().st_size < RECORD_NBYTES:  # somebody has emptied it
            self._sealed.pop(0)
            return True
        body = self._thin(np.memmap(files[-1], EVENT_DTYPE, "r"), unpaired)
        if len(files) > 1:  # both are small by now
            both = np.concatenate([np.fromfile(files[0], EVENT_DTYPE), np.frombuffer(body, EVENT_DTYPE)])
            body = self._thin(both, unpaired)
        body = self._put(files[-1], body, unpaired)
        self._sealed.pop(0)
        self._thinned, self._thinned_nbytes = oldest.index, len(body)
        for file in files[:-1]:
            file.unlink(missing_ok=True)
        return True

    def _put(self, file: Path, body: bytes, unpaired: Collection[int]) -> bytes:
        """Write the thinned records and return them. If the disk is full, thin them to the old file's size.

        Raises OSError.
        """
        try:
            _replace(file, body + trailer(body, dropped=self._dropped))
        except OSError as error:
            most = file.stat().st_size - RECORD_NBYTES
            if error.errno not in NO_ROOM or len(body) <= most:
                raise
            body = self._thin(np.frombuffer(body, EVENT_DTYPE), unpaired, most)
            _replace(file, body + trailer(body, dropped=self._dropped))
        return body

    def _thin(self, slots: Slots, unpaired: Collection[int], most: int | None = None) -> bytes:
        """Thin records to at most `most` bytes; None: to the share of the thinned file."""
        most = self._keep.nbytes // MOST_THINNED if most is None else most
        while True:
            body = thinned(slots, Wanted(self.windows.spans(), unpaired, most))
            if len(body) <= most or not self.windows.pin_less():
                return body


def _look(segment: Segment) -> tuple[list[tuple[int, int]], int]:
    """Return the kind of end and the ordinal of each step, and `_Sealed.thinned_nbytes`.

    That covers descriptions, one count per group, and the last of each running count. Nothing refers to the mapped file
    afterwards.
    """
    slots = np.frombuffer(segment.view, EVENT_DTYPE, count=segment.room // RECORD_NBYTES)
    kinds = slots["kind"]
    steps = np.flatnonzero(kinds == Kind.STEP)
    groups = np.unique(slots["d"][kinds == Kind.CALL])
    so_far = last_so_far(slots, slots["guard"] == GUARD)
    left = int(np.isin(kinds, DESCRIBING).sum()) + len(groups) + len(so_far)
    return list(zip(slots["flags"][steps].tolist(), slots["a"][steps].tolist(), strict=True)), left * RECORD_NBYTES


def _replace(file: Path, content: bytes) -> None:
    """Replace a file's content. A reader sees the old content or the new one, except while a full disk forces an
    overwrite. Raises OSError."""
    beside = file.with_name(THINNING)
    try:
        beside.write_bytes(content)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        if error.errno not in NO_ROOM or len(content) > file.stat().st_size:
            raise
        _overwrite(file, content)


def _overwrite(file: Path, content: bytes) -> None:
    """Write into the space that the file already has."""
    with file.open("r+b", buffering=0) as target:
        target.write(content)
        target.truncate()


@dataclass(frozen=True, slots=True)
class _Window:
    """`spans`: stretches of records that may be protected, the longest first; the first one applies."""

    file: str
    spans: tuple[Span, ...]


class WindowFiles:
    """The profiler's files, oldest first.

    `tell_gone(number, count)` records that one was deleted, the `count`-th so far.
    """

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
            return sum(_entry_nbytes(entry) for entry in entries if entry.name in files)

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
        return (NO_SPAN,)
    margin = min(length, MARGIN_NS)
    return (begin - margin, end + margin), (begin, end), NO_SPAN


def _entry_nbytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # it was deleted meanwhile
        return 0
