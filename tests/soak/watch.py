"""Trains for very long under a trace, watching from outside what it leaves on the disk and takes of memory.

python -m tests.soak RUN [--steps 100000] [--nbytes 64000000] [--every 1]
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.units import size
from tests.launch import PROGRAMS, environment, server

Look = tuple[int, int, int]

RANKS = 2
LOOK_S = 0.02
WARM_RATIO = 0.5
"""This part of the training warms up: caches of torch and Python fill, some when records first are let go."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """What was seen. `disk_nbytes`: the largest that a rank's folder ever was. `looks`: by rank, steps done, and bytes
    resident and blocks that Python's objects take by then. `drift_nbytes`, `drift_blocks`: by rank, how much more it
    was at the end than after warming up. `steps`: by rank, first and last step that is left whole, and how many are.
    `uneven`: steps whose number of collectives is not what the program issued."""

    seconds: float
    disk_nbytes: int
    looks: tuple[tuple[Look, ...], ...]
    drift_nbytes: tuple[int, ...]
    drift_blocks: tuple[int, ...]
    calls_per_step: int
    steps: tuple[tuple[int, int, int], ...]
    uneven: int
    matches: int
    findings: dict[str, str]

    def told(self) -> str:
        lines = [f"{self.seconds:.0f} s; a rank's folder was {size(self.disk_nbytes)} at most"]
        for rank, (looks, kept) in enumerate(zip(self.looks, self.steps, strict=True)):
            first, last, count = kept
            lines.append(f"rank {rank}: steps {first} to {last} are left, {count} whole")
            lines.append(f"memory drifted by {self.drift_nbytes[rank]} bytes and {self.drift_blocks[rank]} blocks:")
            lines.append(", ".join(f"step {step} {size(nbytes)} {blocks} blocks" for step, nbytes, blocks in looks))
        lines.append(f"{self.uneven} steps without their {self.calls_per_step} collectives; {self.matches} matched")
        return "\n".join([*lines, *(f"[{code}] {message}" for code, message in self.findings.items())])


def soak(run: Path, *, steps: int, nbytes: int, every: int = 1, look_every: int = 5000, alone: int = 0) -> Soaked:
    """Train, watch, analyze: see `programs/soaked.py`. Raises AssertionError where the training fails."""
    arguments = (run, steps, nbytes, "--every", every, "--look-every", look_every, "--alone", alone)
    begin, largest = time.monotonic(), 0
    argv = [str(PROGRAMS / "soaked.py"), *map(str, arguments)]
    with server().started(argv, RANKS, environment(), to_the_end=False) as job:
        while not job.is_done(LOOK_S):
            largest = max([largest, *(folder_nbytes(folder) for folder in run.glob("rank-*"))])
        statuses = job.statuses(0)
    assert statuses == [0] * RANKS, job.said
    seconds = time.monotonic() - begin
    return _judged(run, seconds, largest, ddptrace.analyze(run))


def folder_nbytes(folder: Path) -> int:
    """Of its files; one that goes away while it is looked at counts as nothing."""
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _judged(run: Path, seconds: float, disk_nbytes: int, result: Result) -> Soaked:
    told = [json.loads(Path(f"{run}.rank-{rank}.json").read_text()) for rank in range(RANKS)]
    looks = tuple(tuple((step, nbytes, blocks) for step, nbytes, blocks in one["looks"]) for one in told)
    wanted = told[0]["calls_per_step"]
    issued = Counter((row.rank, row.step) for row in result.collectives if row.part == 0)
    kept = [sorted(row.step for row in result.steps if row.rank == rank) for rank in range(RANKS)]
    # Of the first steps the very first has the constructor's collectives too, and the last runs into the end.
    uneven = sum(issued[rank, step] != wanted for rank, mine in enumerate(kept) for step in mine[:-1] if step > 1)
    return Soaked(
        seconds, disk_nbytes, looks, tuple(_drift(look, 1) for look in looks), tuple(_drift(look, 2) for look in looks),
        wanted, tuple((mine[0], mine[-1], len(mine)) for mine in kept), uneven, len(result.matches),
        {one.code: one.message for one in result.findings},
    )  # fmt: skip


def _drift(looks: tuple[Look, ...], what: int) -> int:
    warm = looks[int(WARM_RATIO * len(looks)) :]
    return warm[-1][what] - warm[0][what] if warm else 0


def main(arguments: list[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--nbytes", type=int, default=64_000_000)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args(arguments)
    seen = soak(options.run, steps=options.steps, nbytes=options.nbytes, every=options.every)
    print(seen.told())
    sys.exit(seen.uneven > 0 or seen.disk_nbytes > options.nbytes)
