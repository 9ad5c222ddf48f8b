"""Checks whether a trace is up to date."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ddptrace.schema import ANALYSIS


def is_current(trace: Path, run: Path) -> bool:
    """Whether `trace` is a file, not a link, and no older than any recorded file of the run."""
    made_at_ns = _changed_at_ns(trace) if trace.is_file() and not trace.is_symlink() else None
    return made_at_ns is not None and all(at_ns <= made_at_ns for at_ns in _changes(run))


def _changes(run: Path) -> Iterator[int]:
    for root, folders, files in os.walk(run):
        folders[:] = [name for name in folders if name != ANALYSIS and not name.startswith(".")]
        times = (_changed_at_ns(Path(root, name)) for name in files)
        yield from (at_ns for at_ns in times if at_ns is not None)


def _changed_at_ns(path: Path) -> int | None:
    """Return when a file changed; None if it is gone: a running job renames and deletes files."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
