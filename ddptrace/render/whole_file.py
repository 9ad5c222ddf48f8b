"""Files that are there whole or not at all, so that nobody reads half a report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes its name when the block ends well and vanishes when it does not. A link of that
    name is replaced: nothing is written where it leads. Raises OSError where it cannot be written."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)  # by a process of this number that was killed, or put there to lead elsewhere
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
