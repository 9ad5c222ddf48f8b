"""Opens files of a folder that anybody may have filled: only regular files, and only up to a size."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; links are followed.

    Raises OSError if it is anything else: a pipe would block, a device has no end, and opening some has side effects.
    """
    _check(path.stat(), path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(file.fileno()), path)  # it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path, most_nbytes: int) -> bytes:
    """Read a regular file. Raises OSError as `open_regular` does, and if the file is larger than `most_nbytes`."""
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most_nbytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(nbytes)


def _check(told: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(told.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
