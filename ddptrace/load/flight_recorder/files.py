"""Finds the Flight Recorder dumps of a job. A dump does not say of which rank it is: only its name does.

`nccl_trace_rank_12`, `_dump_12`, `comm_lib_trace_rank_12.json`: any name that ends in the rank, of a file that begins
as a dump does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.load.tables import MOST_RANKS
from ddptrace.record.regular_file import open_regular

NAME: Final = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,7})(?P<suffix>\.json|\.pickle|\.pkl)?", re.DOTALL)
KEYS: Final = (b"version", b"entries", b"pg_config", b"pg_status", b"nccl_version", b"comm_lib_version")
BEGINS: Final = re.compile(
    rb"\x80.*(?:%b)|\s*\{.*(?:%b)"
    % (
        b"|".join(re.escape(bytes([len(key)])) + rb"(?:\0\0\0)?" + key for key in KEYS),
        b"|".join(b'"%b"' % key for key in KEYS),
    ),
    re.DOTALL,
)
"""The first instruction of a pickle or the begin of a JSON object, and then a key of a dump."""
HEAD_NBYTES: Final = 256
PLACES: Final = ("", "*/")
"""In the folder, else in its folders: a job may write one for each host."""


def find_dumps(folder: Path) -> dict[int, Path]:
    """Return the dump of each rank; nothing if there is none.

    Where a rank has a pickle and a JSON, the pickle is chosen, since only that has stack frames. Raises
    RunDirectoryError if two files claim one rank."""
    for place in PLACES:
        found = _by_prefix(folder.glob(f"{place}*"))
        if found:
            return _of_one_job(found, folder)
    return {}


def _by_prefix(paths: Iterable[Path]) -> Mapping[str, dict[int, list[Path]]]:
    found: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(paths):
        named = NAME.fullmatch(path.name)
        if named is not None and int(named["rank"]) < MOST_RANKS and _begins_as_dump(path):
            found[named["prefix"]][int(named["rank"])].append(path)
    return found


def _begins_as_dump(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return BEGINS.match(file.read(HEAD_NBYTES)) is not None
    except OSError:
        return False


def _of_one_job(found: Mapping[str, dict[int, list[Path]]], folder: Path) -> dict[int, Path]:
    if len(found) > 1:
        names = " and ".join(f"{printable(prefix)}*" for prefix in sorted(found)[:2])
        raise RunDirectoryError(
            f"{printable(folder)} holds dumps with different names, as {names}: give a folder with the dumps of one job"
        )
    (ranks,) = found.values()
    return {rank: _chosen(rank, paths) for rank, paths in sorted(ranks.items())}


def _chosen(rank: int, paths: list[Path]) -> Path:
    pickles = [path for path in paths if path.suffix != ".json"]
    chosen, *others = list(_same_name_once(pickles or paths))
    if others:
        names = f"{printable(chosen)} and {printable(others[0])}"
        raise RunDirectoryError(f"{names} are both of rank {rank}: give a folder with the dumps of one job")
    return chosen


def _same_name_once(paths: list[Path]) -> Iterator[Path]:
    """`_dump_3` beside `_dump_3.pickle` says the same."""
    yield from {(path.parent, path.name.removesuffix(path.suffix)): path for path in reversed(paths)}.values()
