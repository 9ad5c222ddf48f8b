"""One records file: allocated, mapped, filled slot by slot, finished with a trailer."""

from __future__ import annotations

import itertools
import mmap
import os
import zlib
from pathlib import Path
from typing import Final

from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, Kind

SEGMENT_NBYTES: Final = 4 << 20
ORDINARY_NBYTES: Final = SEGMENT_NBYTES - RECORD_NBYTES
"""The last slot is kept for the trailer, so that finishing a segment needs no room on the disk."""


class Segment:
    """A mapped file of `SEGMENT_NBYTES`. `next(offsets)` hands out slots; taking one is atomic under the GIL.

    Raises OSError where the disk cannot hold it: the bytes are allocated before they are mapped, since a hole that the
    disk cannot fill would end the process with SIGBUS in the middle of training.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name  # its folder may be renamed
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, SEGMENT_NBYTES)
            self.view = mmap.mmap(descriptor, SEGMENT_NBYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.offsets = itertools.count(0, RECORD_NBYTES)

    def seal(self, used: int, *, dropped: int, final: bool) -> None:
        """Write the trailer behind `used` records, the segment's last slot or, in the final one, where records end."""
        checksum = zlib.crc32(memoryview(self.view)[: used * RECORD_NBYTES])
        at = used * RECORD_NBYTES if final else ORDINARY_NBYTES
        EVENT.pack_into(self.view, at, Kind.TRAILER, final, 0, 0, 0, 0, dropped, used, checksum, 0, 0, 0, 0, GUARD)

    def close(self) -> bool:
        """Unmap. False where another thread is writing this very moment: then the file must keep its length."""
        try:
            self.view.close()
        except BufferError:
            return False
        return True
