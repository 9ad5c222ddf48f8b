"""One records file: allocated, mapped, filled slot by slot, finished with a trailer."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.record.file_limit import file_limit
from ddptrace.record.lost import Dropped
from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, Kind

SEGMENT_NBYTES: Final = 4 << 20
MOST_COUNTED: Final = 2**32 - 1


class Segment:
    """A mapped file of `nbytes`. `next(offsets)` hands out slots; taking one is atomic under the GIL. Slots from `room`
    on hold no record: the last one is kept for the trailer, so that finishing a segment needs no room on the disk.

    Raises OSError where the disk cannot hold it, or this process may not write so large a file. The bytes are allocated
    before they are mapped, since a hole that the disk cannot fill would end the process with SIGBUS in the middle of
    training.
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
        self.lent_to: set[object] = set()  # who may write into slots of it, however late: see `Recorder.lend`

    def seal(self, used: int, *, dropped: Dropped, final: bool) -> None:
        """Write the trailer behind `used` records, the segment's last slot or, in the final one, where records end."""
        at = used * RECORD_NBYTES if final else self.room
        with memoryview(self.view) as view:
            last = trailer(view[: used * RECORD_NBYTES], dropped=dropped, final=final)
        self.view[at : at + RECORD_NBYTES] = last

    def close(self) -> bool:
        """Unmap. False where another thread is writing this very moment: then the file must keep its length."""
        try:
            self.view.close()
        except BufferError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slots in a row, `offset` that of the first."""

    segment: Segment
    offset: int
    count: int


def trailer(body: bytes | memoryview, *, dropped: Dropped, final: bool = False) -> bytes:
    """The record that ends a file whose records are `body`."""
    used, checksum = len(body) // RECORD_NBYTES, zlib.crc32(body)
    short, bursts = (min(count, MOST_COUNTED) for count in (dropped.without_room, dropped.in_bursts))
    return EVENT.pack(Kind.TRAILER, final, 0, 0, 0, 0, dropped.total, used, checksum, short, bursts, 0, 0, GUARD)
