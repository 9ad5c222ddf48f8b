"""What a diagnosis of the Flight Recorder dumps of many ranks costs, and whether it names the right ones.

The dumps of one job are copied: each copy has its own ranks and groups, but for the group of all ranks, which all
copies share. So each copy has the culprits of the first.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import Cost, measured
from ddptrace.errors import DdptraceError
from ddptrace.load.flight_recorder.dump import ranks_in
from ddptrace.load.flight_recorder.job import find_dumps
from ddptrace.load.flight_recorder.plain_pickle import plain_value
from ddptrace.own_module import own_module
from tests.simulated_job import Fault, stopped_by, write

WORLD: Final = "0"
FAULTS: Final = {10: (Fault.LOCK_GIL, 61), 15: (Fault.LOCK_GIL, 62)}
BLAMING: Final = ("mismatch", "device", "stuck", "message", "missing")

Dump = dict[str, Any]


def bench_dumps(folder: Path | None, ranks: int) -> str:
    """Copy the dumps in `folder`, else those of a simulated job with two faults, to `ranks` ranks and diagnose them.
    Returns a Markdown table.

    Raises: DdptraceError if the folder holds no dumps, or the diagnosis names other ranks than copies of those that it
    names in `folder`."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="ddptrace-bench-") as place:
            return bench_dumps(write(stopped_by(FAULTS).dumps(only_active=True), Path(place)), ranks)
    dumps = {rank: plain_value(path.read_bytes()) for rank, path in find_dumps(folder).items()}
    if not dumps:
        raise DdptraceError(f"{folder} holds no dumps of the Flight Recorder")
    with tempfile.TemporaryDirectory(prefix="ddptrace-bench-") as place:
        nbytes = _write(copies(dumps, ranks), Path(place))
        _, first = _diagnosed(folder)
        cost, found = _diagnosed(Path(place))
    expected = {rank for rank in range(ranks) if rank % (max(dumps) + 1) in first}
    if found != expected:
        told = f"of {len(expected)} culprits, {len(found & expected)} are named, and {len(found - expected)} others"
        raise DdptraceError(told)
    return _table(ranks, nbytes, cost, len(expected))


def copies(dumps: Mapping[int, Dump], ranks: int) -> Iterator[tuple[int, Dump]]:
    """Yield the dump of each rank."""
    size = max(dumps) + 1
    everybody = str(list(range(ranks)))
    for rank in range(ranks):
        copy, place = divmod(rank, size)
        if place in dumps:
            yield rank, _copied(dumps[place], copy, size, everybody)


def _copied(dump: Dump, copy: int, size: int, everybody: str) -> Dump:
    """Names stay numbers, and in order, by which the status of a group is found."""

    def name(old: str) -> str:
        return old if old == WORLD else str(int(old) + 1_000 * copy)

    def ranks(old: str, told: str) -> str:
        return everybody if old == WORLD else str([rank + copy * size for rank in ranks_in(told)])

    config = {
        name(old): {**about, "name": name(old), "ranks": ranks(old, about["ranks"])}
        for old, about in dump["pg_config"].items()
    }
    entries = [{**entry, "process_group": _renamed(entry["process_group"], name)} for entry in dump["entries"]]
    return {**dump, "pg_config": config, "entries": entries}


def _renamed(group: Sequence[str], name: Callable[[str], str]) -> tuple[str, str]:
    return name(group[0]), group[1]


def _write(dumps: Iterator[tuple[int, Dump]], place: Path) -> int:
    nbytes = 0
    for rank, dump in dumps:
        nbytes += (place / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return nbytes


def _diagnosed(folder: Path) -> tuple[Cost, set[int]]:
    """The cost, and the ranks to blame. The command ends with a code that says what it found, as a measured program may
    not."""
    command = [*own_module("benchmarks.dumps_work"), str(folder)]
    cost, printed = measured(command, os.environ)
    verdicts: Sequence[Dump] = json.loads(printed)["verdicts"]
    return cost, {rank for verdict in verdicts if verdict["kind"] in BLAMING for rank in verdict["absent"]}


def _table(ranks: int, nbytes: int, cost: Cost, culprits: int) -> str:
    peak = "-" if cost.peak_nbytes is None else f"{cost.peak_nbytes / 1e6:.0f}"
    return "\n".join(
        [
            f"{ranks:,} ranks, {nbytes / 1e6:.0f} MB of dumps; {culprits:,} culprits, all named, and nobody else\n",
            "| CPU s | wall s | peak MB |",
            "|---|---|---|",
            f"| {cost.cpu_s:.1f} | {cost.wall_s:.1f} | {peak} |",
        ]
    )
