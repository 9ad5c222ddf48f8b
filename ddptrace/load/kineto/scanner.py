"""Parts of the list of events as rows, by the compiled scanner.

It takes in a part whole, exactly as the reader in Python does, or leaves it to that reader.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.stream import Event

ROW: Final = np.dtype(
    {
        "names": [
            *("begin", "length", "correlation", "nbytes"),
            *("name", "lane", "args_begin", "args_end", "category", "flags"),
        ],
        "formats": [*[np.int64] * 4, *[np.int32] * 4, *[np.uint8] * 2],
        "offsets": [0, 8, 16, 24, 32, 36, 40, 44, 48, 49],
        "itemsize": 56,
    }
)
"""`Row` of scan.c. `begin` and `length` in ns; `nbytes` and `correlation` are -1 where they are not said."""
ODD_ARGS, NAMES_COLLECTIVE = 1, 2
"""Bits of `flags`: the arguments have to be read in Python; they name a collective."""
LEAST_NBYTES: Final = 32  # of an event that gives a row
NAMES, LANES = 0, 1

_SCALAR: Final = msgspec.json.Decoder(int | float | str | None)
_EVENT: Final = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Scanned:
    """The kept events of one part. Arrays hold until the next part is scanned.

    `names` and `lanes` are those that no part had before; rows count them on."""

    seen: int  # events, kept or not
    rows: NDArray[Any]
    metadata: list[Event]  # which may name threads
    names: list[Any]
    lanes: list[tuple[Any, Any]]


class Scanner:
    """Scans the parts of one list of events, one after the other. Names and lanes are numbered over all of them."""

    def __init__(self, library: ctypes.CDLL, seed: int, categories: Mapping[str, int]) -> None:
        """Raises MemoryError."""
        self._library = library
        kinds = np.fromiter(categories.values(), np.int8).tobytes()
        listed = b"".join(bytes([len(name)]) + name.encode() for name in categories)
        self._scanner = library.ddptrace_scanner_open(seed, listed, kinds, len(categories))
        if not self._scanner:
            raise MemoryError
        weakref.finalize(self, library.ddptrace_scanner_close, self._scanner)
        self._known = [0, 0]  # names and lanes
        self._rows, self._threads = np.empty(0, ROW), np.empty((0, 2), np.int32)

    def scan(self, text: bytearray, begin: int, end: int) -> Scanned | None:
        """Scan the events that stand between these places. None where they are left to the reader in Python."""
        most = (end - begin) // LEAST_NBYTES + 1
        if most > len(self._rows):
            self._rows, self._threads = np.empty(most, ROW), np.empty((most, 2), np.int32)
        found = np.zeros(2, np.int64)
        part = ctypes.c_char.from_buffer(text)
        seen = self._library.ddptrace_scan(
            self._scanner,
            ctypes.addressof(part) + begin,
            end - begin,
            self._rows.ctypes.data,
            self._threads.ctypes.data,
            most,
            found.ctypes.data,
        )
        del part  # which keeps `text` where it is
        if seen < 0:
            return None
        try:
            metadata = [
                _EVENT.decode(memoryview(text)[at:to]) for at, to in (self._threads[: found[1]] + begin).tolist()
            ]
            names = [_SCALAR.decode(name) for name in self._new(NAMES)]
            lanes = [_lane(lane) for lane in self._new(LANES)]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._library.ddptrace_scanner_undo(self._scanner)
            return None
        self._known = [self._known[NAMES] + len(names), self._known[LANES] + len(lanes)]
        return Scanned(seen, self._rows[: found[0]], metadata, names, lanes)

    def _new(self, which: int) -> list[bytes]:
        """The texts that came with the last part."""
        data, ends = ctypes.c_void_p(), ctypes.c_void_p()
        count = self._library.ddptrace_scanner_texts(self._scanner, which, ctypes.byref(data), ctypes.byref(ends))
        first = self._known[which]
        if count == first:
            return []
        assert data.value is not None and ends.value is not None
        cuts = list((ctypes.c_int64 * (count - first)).from_address(ends.value + 8 * first))
        begin = ctypes.c_int64.from_address(ends.value + 8 * (first - 1)).value if first else 0
        text = ctypes.string_at(data.value + begin, cuts[-1] - begin)
        return [text[one - begin : other - begin] for one, other in pairwise([begin, *cuts])]


def _lane(text: bytes) -> tuple[Any, Any]:
    pid, _, tid = text.partition(b"\0")
    return _SCALAR.decode(pid), _SCALAR.decode(tid)
