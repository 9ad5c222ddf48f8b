"""Kineto files: how large one will be, and its packed copy in the rank's folder."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

from torch.profiler import profile

PACKED = 4
"""A plain Kineto file is at least this many times as large as its packed copy."""

EVENT_NBYTES = 600
SHAPES_NBYTES = 2_000
"""Bytes of a plain Kineto file per event, without and with input shapes, at most. Measured files took half of the first
and a quarter of the second."""


def plain_nbytes(profiler: profile) -> int:
    """Return the largest size of its plain Kineto file, in bytes; 1 if this torch does not list the events."""
    results: Any = getattr(profiler.profiler, "kineto_results", None)
    each = SHAPES_NBYTES if profiler.record_shapes else EVENT_NBYTES
    return 1 if results is None else each * len(results.events())


def is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def copy_packed(source: Path, target: Path) -> None:
    """Copy a Kineto file and pack it if it is not packed. The copy has another name until it is whole, and is removed
    if that fails."""
    beside = target.with_suffix(".new")
    packed = is_packed(source)
    try:
        with source.open("rb") as read, beside.open("wb") if packed else gzip.open(beside, "wb", 1) as written:
            shutil.copyfileobj(read, written)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
