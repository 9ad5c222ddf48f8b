"""A rank's folder while it is written: new record files ahead of training, and the oldest let go to stay within bounds.

records-00012.bin   thinned: it stands for 0 to 12, see `schema.Kind.LET_GO`
records-00013.bin   sealed
records-00014.bin   being filled
records-00015.bin   spare

A thinned file replaces the newest it stands for in one rename; only then are the older ones removed. So whenever the
process dies, what is there is whole, and a reader passes over what a thinned file already stands for. Only where the
disk has no room for that, the thinned records overwrite the file they come from.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ddptrace.findings import DISK_SHORT, FindingKind
from ddptrace.keep import Keep
from ddptrace.record.lost import Dropped
from ddptrace.record.segment import SEGMENT_NBYTES, Segment, trailer
from ddptrace.record.thin import DESCRIBING, Slots, Wanted, last_so_far, thinned
from ddptrace.record.window_files import WindowFiles, size
from ddptrace.schema import EVENT_DTYPE, GUARD, META, RECORD_NBYTES, Kind, segment_index, segment_name

SEGMENTS: Final = 16
"""A rank's folder holds so many record files, if these are not of full size yet."""

MOST_THINNED: Final = 7
MOST_LASTING: Final = 21
MOST_WINDOWS: Final = 2
"""The parts of the bound that the thinned file, in it what never goes, and the profiler's files may take: 1 / so many.
While one thinned file takes the place of another, both lie there, and three segments beside them. As much as what never
goes may be the counts by group, and a text that is still being written."""

RESERVE_RATIO: Final = 0.05
RESERVE_NBYTES: Final = 1 << 30
"""So much of the file system, whichever is less, is left to the program: its checkpoint must not fail because of us."""

FIRST: Final = 2
"""So many segments are made however little room there is: from then on, the oldest can be let go instead."""

THINNING: Final = "thinning.new"

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A finished segment. `newest`: by what ends steps, the newest step that ended in it or before, -1 for none.
    `thinned_nbytes`: no more of it will be left."""

    index: int
    newest: dict[int, int]
    thinned_nbytes: int


class Store:
    """Called by one thread at a time, but for `windows.add` and `free_nbytes`. `note(kind, message)` records a
    finding; `tell_gone`: see `WindowFiles`."""

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
        self._sealed: list[_Sealed] = []  # oldest first; what was let go is not among them
        self._thinned: int | None = None  # index of the file that stands for all before it
        self._thinned_nbytes = 0
        self._dropped = Dropped()
        self._newest: dict[int, int] = {}
        self.windows = WindowFiles(folder, tell_gone)
        self._short_noted = False

    def make(self, unpaired: Collection[int]) -> Segment:
        """A new segment, in place of the oldest ones where the bounds ask for it. Raises OSError where there is no
        room and nothing to let go. `unpaired`: see `thin.Wanted`."""
        while self._is_full() and self._let_go(unpaired):
            pass
        in_place = False  # of one that went: then the disk gets no fuller
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
        """Let go what need not wait for the next segment: profiler files beyond their part, and what is too old. The
        newest profiler file stays however large it is: somebody asked for it."""
        while len(self.windows) > 1 and self.windows.nbytes() > self._keep.nbytes // MOST_WINDOWS:
            self.windows.drop_oldest()
        while self._sealed and (self._is_old(self._sealed[0]) or self._nbytes() > self._keep.nbytes):
            self._let_go(unpaired)

    # Room ------------------------------------------------------------------------------------------------------------

    def _make(self, in_place: bool) -> Segment:
        if not in_place and self._made >= FIRST and self.free_nbytes() < self.segment_nbytes:
            raise OSError(errno.ENOSPC, "what is left is for the program")
        path = self._folder() / segment_name(self._made)
        try:
            segment = Segment(path, self.segment_nbytes)
        except OSError as error:
            if not in_place or error.errno not in NO_ROOM:
                raise
            segment = Segment(path, self.segment_nbytes // 2)  # what was thinned takes some of the room it gave
        self._made += 1
        return segment

    def _is_full(self) -> bool:
        """Whether there is no room for another segment, and for thinning the oldest one beside it."""
        describing = self._thinned_nbytes + sum(one.thinned_nbytes for one in self._sealed)
        slack = min(describing, self._keep.nbytes // MOST_THINNED) + self.segment_nbytes // 4
        return self._made >= FIRST and self._nbytes() + self.segment_nbytes + slack > self._keep.nbytes

    def _nbytes(self) -> int:
        """Of all that stays. Profiler files count up to their part: no record should go for the sake of one that is
        larger, nor for the plain file that a profiler writes and that is packed at once."""
        with os.scandir(self._folder()) as entries:
            records = sum(size(entry) for entry in entries if segment_index(entry.name) >= 0 or entry.name == META)
        return records + min(self.windows.nbytes(), self._keep.nbytes // MOST_WINDOWS)

    def free_nbytes(self) -> int:
        """What may be taken of the file system."""
        disk = os.statvfs(self._folder())
        reserve = min(int(disk.f_blocks * disk.f_frsize * RESERVE_RATIO), RESERVE_NBYTES)
        return disk.f_bavail * disk.f_frsize - reserve

    def _note_short(self, error: OSError) -> None:
        if not self._short_noted:
            self._short_noted = True
            message = f"the disk has no more room ({error.strerror}): from here on the oldest records go for new ones"
            self._note(DISK_SHORT, message)

    # Letting go ------------------------------------------------------------------------------------------------------

    def _is_old(self, sealed: _Sealed) -> bool:
        """Whether so many whole steps came after it as are to be kept. The strongest kind of end counts."""
        if self._keep.steps is None or not self._newest:
            return False
        ended_by = max(self._newest)
        return self._newest[ended_by] - sealed.newest.get(ended_by, -1) > self._keep.steps

    def _let_go(self, unpaired: Collection[int]) -> bool:
        """Thin the oldest segment, into the file that stands for all before it. False where there is none."""
        if not self._sealed:
            return False
        folder, oldest = self._folder(), self._sealed[0]
        files = [folder / segment_name(index) for index in (self._thinned, oldest.index) if index is not None]
        if files[-1].stat().st_size < RECORD_NBYTES:  # somebody has emptied it: there is nothing left to thin
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
        """Write the thinned records, and return them. Where the disk has no room for more than the file takes already,
        more of them go. Raises OSError."""
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
        """`most`: no larger than this, if need be; None: than its part of the bound."""
        most = self._keep.nbytes // MOST_THINNED if most is None else most
        while True:
            body = thinned(slots, Wanted(self.windows.spans(), unpaired, most))
            if len(body) <= most or not self.windows.pin_less():
                return body


def _look(segment: Segment) -> tuple[list[tuple[int, int]], int]:
    """What ended each step, and its ordinal; and `_Sealed.thinned_nbytes`: what describes, a count for each group, and
    the last of what counts from the start. Nothing holds on to the mapped file afterwards."""
    slots = np.frombuffer(segment.view, EVENT_DTYPE, count=segment.room // RECORD_NBYTES)
    kinds = slots["kind"]
    steps = np.flatnonzero(kinds == Kind.STEP)
    groups = np.unique(slots["d"][kinds == Kind.CALL])
    so_far = last_so_far(slots, slots["guard"] == GUARD)
    left = int(np.isin(kinds, DESCRIBING).sum()) + len(groups) + len(so_far)
    return list(zip(slots["flags"][steps].tolist(), slots["a"][steps].tolist(), strict=True)), left * RECORD_NBYTES


def _replace(file: Path, content: bytes) -> None:
    """A reader sees the old content or the new, never half; but where the disk is full to the brim, one that looks in
    that very moment may find the file changed. Raises OSError."""
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
    """Into what the file takes already: it asks the disk for nothing."""
    with file.open("r+b", buffering=0) as target:
        target.write(content)
        target.truncate()
