"""A file system of a few megabytes, to be filled."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import need


@contextlib.contextmanager
def mounted(folder: Path, size_mb: int) -> Iterator[Path]:
    """A file system in memory, of `size_mb` * 2**20 bytes, in a folder of its own below this one; empty."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", disk]
    done = subprocess.run(mount, capture_output=True, check=False)
    need(done.returncode == 0, "mounting a small file system (needs root)")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=False)


def fill(disk: Path) -> None:
    """Take all that it has left."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)) == 4096:
            pass
