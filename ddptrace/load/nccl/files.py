"""Finds NCCL's logs and the files of NCCL Inspector, which both are called `.log`: their lines tell them apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.load.nccl.debug_log import choices
from ddptrace.load.nccl.inspector import times
from ddptrace.load.tables import NcclChoice, NcclTime
from ddptrace.record.regular_file import open_regular

LONGEST_LINE: Final = 1 << 20
"""Verbose records of NCCL Inspector, with an event for each channel, take some kB."""


@dataclass(frozen=True, slots=True)
class NcclFiles:
    """What all files together tell. `unreadable`: files that could not be opened."""

    choices: Counter[NcclChoice]
    times: tuple[NcclTime, ...]
    unreadable: tuple[str, ...]


def read_files(paths: Sequence[Path]) -> NcclFiles:
    """Read files, and all files in folders. Raises RunDirectoryError if none of them tells anything of NCCL."""
    chosen: Counter[NcclChoice] = Counter()
    timed: list[NcclTime] = []
    unreadable: list[str] = []
    for path in _files(paths):
        try:
            chosen += choices(_lines(path))
            timed += times(_lines(path))
        except OSError as error:
            unreadable.append(f"{printable(path)} ({error.strerror})")
    if not chosen and not timed:
        where = ", ".join(map(printable, paths))
        why = f"; cannot be read: {', '.join(unreadable[:3])}" if unreadable else ""
        raise RunDirectoryError(
            f"{where} tells nothing of NCCL's collectives{why}: give logs of NCCL_DEBUG=INFO with"
            " NCCL_DEBUG_SUBSYS=INIT,TUNING, or files of NCCL Inspector"
        )
    return NcclFiles(chosen, tuple(timed), tuple(unreadable))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise RunDirectoryError(f"{printable(path)} does not exist; give NCCL's logs, or a folder of them")
        if path.is_dir():
            yield from sorted(Path(root, name) for root, _, names in os.walk(path) for name in names)
        else:
            yield path


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE):
            yield line
