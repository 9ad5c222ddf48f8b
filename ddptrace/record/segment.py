"""One records file: allocated, mapped, filled slot by slot, finished with a trailer."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, Kind

SEGMENT_NBYTES: Final = 4 << 20
MOST_COUNTED: Final = 2**32 - 1


@dataclass(slots=True)
class Dropped:
    """Numbers of records that could not be written.

    `without_room`: no file could be made for them. `in_bursts`: they came faster than files were made. `unwritable`: a
    value was out of its field's range, or the file was closed during the write.
    """

    without_room: int = 0
    in_bursts: int = 0
    unwritable: int = 0

    @property
    def total(self) -> int:
        return self.without_room + self.in_bursts + self.unwritable


class Segment:
    """A mapped file of `nbytes`. `next(offsets)` hands out slots, atomically under the GIL.

    Records go into slots before `room`. The last slot is kept for the trailer, so that finishing a segment needs no
    space on the disk. The bytes are allocated before they are mapped: filling a hole on a full disk would end training
    with SIGBUS.

    Raises OSError if the disk is full, or if the file is larger than this process may write.
    """

    def __init__(self, path: Path, nbytes: int = SEGMENT_NBYTES) -> None:
        self.name = path.name  # its folder may be renamed
        self.room = nbytes - RECORD_NBYTES
        if nbytes > file_limit():
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            self.view = mmap.mmap(descriptor, nbytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.offsets = itertools.count(0, RECORD_NBYTES)
        self.lent_to: set[object] = set()  # who may still write into its slots: see `Recorder.lend`

    def seal(self, used: int, *, dropped: Dropped, final: bool) -> None:
        """Write the trailer for `used` records: in the last slot, or in the final segment right behind the records."""
        at = used * RECORD_NBYTES if final else self.room
        with memoryview(self.view) as view:
            last = trailer(view[: used * RECORD_NBYTES], dropped=dropped, final=final)
        self.view[at : at + RECORD_NBYTES] = last

    def close(self) -> bool:
        """Unmap. Returns False if another thread is writing at this moment: then the file must keep its length."""
        try:
            self.view.close()
        except BufferError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive slots, the first at `offset`."""

    segment: Segment
    offset: int
    count: int


def trailer(body: bytes | memoryview, *, dropped: Dropped, final: bool = False) -> bytes:
    """Make the record that ends a file whose records are `body`."""
    used, checksum = len(body) // RECORD_NBYTES, zlib.crc32(body)
    short, bursts = (min(count, MOST_COUNTED) for count in (dropped.without_room, dropped.in_bursts))
    return EVENT.pack(Kind.TRAILER, final, 0, 0, 0, 0, dropped.total, used, checksum, short, bursts, 0, 0, GUARD)


def file_limit() -> int:
    """Return how large a file this process may write, in bytes, as `ulimit -f` sets it; `sys.maxsize` without a limit.

    Writing a larger file fails with an error if SIGXFSZ is ignored, as Python does; else it ends the process.
    """
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
