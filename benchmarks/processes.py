"""What a program and all that it starts cost: processor time, time and peak memory."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError

SAMPLE_S: Final = 0.01
WORTH_A_LOOK: Final = 1.01
"""Growth of the plain sum from which shared pages are counted exactly, which takes a while."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`peak_nbytes`: of the whole tree of processes, sampled, with shared pages counted once (PSS); None if the system
    does not report it."""

    cpu_s: float
    wall_s: float
    peak_nbytes: int | None


def measured(command: Sequence[str], environment: Mapping[str, str]) -> tuple[Cost, str]:
    """Run a program to its end. Returns its cost and its output. Raises: DdptraceError if it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=errors, env=environment, text=True
        ) as process:
            peak_nbytes = _watched(process)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise DdptraceError(f"a measured program failed: {last}")
        out.seek(0)
        cpu_s = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
        return Cost(cpu_s, wall_s, peak_nbytes), out.read()


def _watched(process: subprocess.Popen[str]) -> int | None:
    """Wait for its end. Returns the highest sum of memory. Whatever ends this process ends it too."""
    try:
        return _peak_nbytes(process)
    finally:
        process.kill()


def _peak_nbytes(process: subprocess.Popen[str]) -> int | None:
    most_resident, peak = 0, 0
    while process.poll() is None:
        tree = list(_tree(process.pid))
        resident = sum(_resident_nbytes(pid) for pid in tree)
        if resident > most_resident * WORTH_A_LOOK:
            most_resident = resident
            peak = max(peak, sum(_proportional_nbytes(pid) for pid in tree))
        time.sleep(SAMPLE_S)
    return peak or None


def _tree(pid: int) -> Iterator[int]:
    """Yield the process and all its living descendants."""
    yield pid
    for thread in _names(Path(f"/proc/{pid}/task")):
        for child in _read(Path(f"/proc/{pid}/task/{thread}/children")).split():
            yield from _tree(int(child))


def _resident_nbytes(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def _proportional_nbytes(pid: int) -> int:
    lines = _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _names(folder: Path) -> list[str]:
    """Return the names in a folder; empty if the process is gone. `Path.glob` raises if it goes meanwhile."""
    try:
        return [thread.name for thread in folder.iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    """Return the text of a file; empty if the process is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
