"""Reads `rank-<r>/records-*.bin` into arrays, whatever is damaged.

Returns whole records, and counts and describes what is lost. The folder may still be written, and its oldest records
may be deleted meanwhile.
"""

from __future__ import annotations

import stat
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddptrace.record.directory import read_regular
from ddptrace.schema import EVENT_DTYPE, GUARD, READY_DTYPE, RECORD_NBYTES, TEXT_PER_RECORD, Kind, segment_index

MOST_NBYTES = 1 << 30  # more than any recorder's segment
LOOKS = 5
"""How often to list the folder again if files disappear meanwhile."""


@dataclass(slots=True)
class Records:
    """Records of one rank. `events` (EVENT_DTYPE) and `ready` (READY_DTYPE) are in the order they were written.

    `strings` maps id to text. `closed`: the rank recorded its end. `dropped`: number of records that the writer had to
    drop; of these, `dropped_without_room` had no file, and `dropped_in_bursts` came faster than files were made.
    `torn`: number of slots cut off by a death during the write, or overwritten. `damaged`: a sentence for each file
    that was changed after it was finished, that ends within a record, or that no recorder wrote. `missed`: some records
    were deleted before they were read. `behind`: there are further files for the next read.
    """

    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, EVENT_DTYPE))
    ready: NDArray[np.void] = field(default_factory=lambda: np.empty(0, READY_DTYPE))
    strings: dict[int, str] = field(default_factory=lambda: {0: ""})
    closed: bool = False
    dropped: int = 0
    dropped_without_room: int = 0
    dropped_in_bursts: int = 0
    torn: int = 0
    missed: bool = False
    behind: bool = False
    damaged: tuple[str, ...] = ()


class RecordReader:
    """Reads a rank's folder while it grows: each `read()` returns the records since the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cursors: dict[str, Cursor] = {}
        self._finished: set[str] = set()
        self._has_read = False
        self._from = -1  # skip segments with a lower index
        self._chunks: dict[int, dict[int, bytes]] = {}

    def read(self, *, live: bool = False, segments: int | None = None) -> Records:
        """Read everything that is new. Strings are returned once complete.

        Args:
            live: The writer is running, so that an empty slot may be filled in a moment: stop at it once, and check it
                again until its file is finished.
            segments: Maximum number of finished files to read, the oldest first.

        Raises:
            OSError: A file cannot be read. Nothing was consumed.
        """
        records = Records()
        files, records.behind = self._load(segments, records)
        starts = [at for at, (_, data) in enumerate(files) if _stands_for_all_before(data)]
        if starts:
            files = files[starts[-1] :]
            self._begin_at(files[0][0], records)
        parts = []
        for path, data in files:
            parts.append(self._read_segment(path, data, records, live))
            if self._cursors[path.name].is_held_up:
                records.behind = False
                break
        slots = np.concatenate(parts) if parts else np.empty(0, EVENT_DTYPE)
        kinds = slots["kind"]
        self._add_strings(slots[kinds == Kind.STRING], records.strings)
        records.ready = slots[kinds == Kind.READY].view(READY_DTYPE)
        records.events = slots[(kinds != Kind.STRING) & (kinds != Kind.READY)]
        self._has_read = True
        return records

    def _load(self, segments: int | None, records: Records) -> tuple[list[tuple[Path, bytes]], bool]:
        """Load the files to read, by index, and say whether there are more.

        A file that disappears was a spare one, or was deleted; the next file records a deletion.
        """
        for _ in range(LOOKS):
            found = sorted(self.folder.glob("records-*.bin"), key=lambda path: (segment_index(path.name), path.name))
            if found:  # else the folder may be in the middle of a rename
                self._forget_all_but({path.name for path in found})
            odd = {path: words for path in found if (words := _oddity(path))}
            try:
                loaded = _contents([path for path in found if path not in odd and self._is_due(path)], segments)
            except FileNotFoundError:
                continue
            records.damaged += tuple(f"{path.name} {words} and is ignored" for path, words in odd.items())
            return loaded
        return [], False

    def _forget_all_but(self, names: set[str]) -> None:
        self._finished &= names
        self._cursors = {name: cursor for name, cursor in self._cursors.items() if name in names}

    def _is_due(self, path: Path) -> bool:
        is_read = path.name in self._finished or segment_index(path.name) < self._from
        return not is_read and path.is_file()

    def _begin_at(self, thinned: Path, records: Records) -> None:
        records.missed = self._has_read
        self._from = segment_index(thinned.name)
        self._cursors.clear()

    def _read_segment(self, path: Path, data: bytes, records: Records, live: bool) -> NDArray[np.void]:
        if len(data) % RECORD_NBYTES:
            records.damaged += (f"{path.name} ends in the middle of a record",)
        slots = np.frombuffer(data, EVENT_DTYPE, count=len(data) // RECORD_NBYTES)
        body = self._take_trailer(path, data, slots, records)
        growing = live and path.name not in self._finished
        found, torn = self._cursors.setdefault(path.name, Cursor()).take(body, growing=growing)
        records.torn += torn
        return found

    def _take_trailer(self, path: Path, data: bytes, slots: NDArray[np.void], records: Records) -> NDArray[np.void]:
        """Return the slots before the trailer, or all slots if there is none."""
        if not _has_trailer(slots):
            return slots
        self._finished.add(path.name)
        trailer = slots[-1]
        used = int(trailer["b"])
        if used != len(slots) - 1 or zlib.crc32(data[: used * RECORD_NBYTES]) != int(trailer["c"]):
            records.damaged += (f"{path.name} was changed after it was written",)
        records.closed |= bool(trailer["flags"])
        records.dropped = max(records.dropped, int(trailer["a"]))
        records.dropped_without_room = max(records.dropped_without_room, int(trailer["d"]))
        records.dropped_in_bursts = max(records.dropped_in_bursts, int(trailer["e"]))
        return slots[:-1]

    def _add_strings(self, slots: NDArray[np.void], strings: dict[int, str]) -> None:
        fresh = set()
        for slot in slots:
            raw = slot.tobytes()
            number, chunk = int.from_bytes(raw[4:8], "little"), int.from_bytes(raw[2:4], "little")
            self._chunks.setdefault(number, {})[chunk] = raw[8 : 8 + min(raw[1], TEXT_PER_RECORD)]
            fresh.add(number)
        for number in fresh:
            text = _whole_text(self._chunks[number])
            if text is not None:
                strings[number] = text
                del self._chunks[number]


class Cursor:
    """Tracks how far one growing record file has been read.

    slots    r r r . r r . r | . . .        .: empty, checked again until the file is finished
             ├── taken ─────┤

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

        While the file grows, a slot that is not whole holds back the later ones at the first look; at the next it is
        passed over.
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


def _oddity(path: Path) -> str:
    """Say why no recorder can have written this file; empty if one may have."""
    try:
        told = path.stat()
    except OSError:  # it was deleted
        return ""
    if not stat.S_ISREG(told.st_mode):
        return "is not a file"
    return "is larger than any record file" if told.st_size > MOST_NBYTES else ""


def _contents(paths: list[Path], most: int | None) -> tuple[list[tuple[Path, bytes]], bool]:
    """Load files up to the `most`-th finished one, and say whether others follow."""
    files: list[tuple[Path, bytes]] = []
    finished = 0
    for path in paths:
        if finished == most:
            return files, True
        data = read_regular(path, MOST_NBYTES)
        finished += _has_trailer(np.frombuffer(data, EVENT_DTYPE, count=len(data) // RECORD_NBYTES))
        files.append((path, data))
    return files, False


def _has_trailer(slots: NDArray[np.void]) -> bool:
    return bool(len(slots) and slots[-1]["kind"] == Kind.TRAILER and slots[-1]["guard"] == GUARD)


def _stands_for_all_before(data: bytes) -> bool:
    """Whether a file begins with the record that stands for deleted files."""
    first = np.frombuffer(data[:RECORD_NBYTES], EVENT_DTYPE, count=len(data) >= RECORD_NBYTES)
    return bool(len(first) and first["kind"][0] == Kind.LET_GO and first["flags"][0] and first["guard"][0] == GUARD)


def _whole_text(chunks: dict[int, bytes]) -> str | None:
    """Return the text if all chunks are there; None before. Only the last chunk is shorter than the others."""
    parts = [chunks.get(index) for index in range(len(chunks))]
    if None in parts or len(parts[-1] or b"") == TEXT_PER_RECORD:
        return None
    return b"".join(part for part in parts if part is not None).decode("utf-8", "replace")


def _written_in_all(slots: NDArray[np.void]) -> int:
    """Return how many slots were handed out: all up to the last one that is not empty."""
    filled = np.flatnonzero(slots["kind"] != Kind.NONE)
    return int(filled[-1]) + 1 if len(filled) else 0
