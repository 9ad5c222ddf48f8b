"""Kineto files: how large one will be, and its packed copy in the rank's folder."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

from torch.profiler import profile

PACKED = 4
"""A plain Kineto file is packed into less than one part in so many."""

EVENT_NBYTES = 600
SHAPES_NBYTES = 2_000
"""A plain Kineto file takes at most this for each event, without and with the shapes of its inputs. Files that were
measured took half of the first and a quarter of the second."""


def plain_nbytes(profiler: profile) -> int:
    """How large its Kineto file will be at most; 1 where this torch does not tell."""
    results: Any = getattr(profiler.profiler, "kineto_results", None)
    each = SHAPES_NBYTES if profiler.record_shapes else EVENT_NBYTES
    return 1 if results is None else each * len(results.events())


def is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def copy_packed(source: Path, target: Path) -> None:
    """Copy a Kineto file, packed if it was not; under another name until it is whole, and not at all where it fails."""
    beside = target.with_suffix(".new")
    packed = is_packed(source)
    try:
        with source.open("rb") as read, beside.open("wb") if packed else gzip.open(beside, "wb", 1) as written:
            shutil.copyfileobj(read, written)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
