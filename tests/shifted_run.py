"""A recorded run with one rank's clock made wrong: the truth is exact, since it is what was done to it."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddptrace.schema import EVENT_DTYPE, MANIFEST, READY_DTYPE, RECORD_NBYTES, Kind, rank_folder

WITHOUT_TIME = (Kind.NONE, Kind.STRING, Kind.READY, Kind.TRAILER)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A clock that reads `offset_ns` too much at the run's zero, and gains `ppm` on it from then on."""

    offset_ns: int
    ppm: float

    def more(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """What it reads too much at instants since the run's zero."""
        gained: NDArray[np.int64] = np.rint(at * (self.ppm * 1e-6)).astype(np.int64)
        return self.offset_ns + gained


def shifted_run(run: Path, out: Path, rank: int, wrong: Wrong) -> Path:
    """A copy of a run whose rank read a wrong clock, monotonic and wall clock alike, from its first record on."""
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("analysis"))
    zero = int(json.loads((run / MANIFEST).read_text())["zero_unix_ns"])
    files = sorted((out / rank_folder(rank)).glob("records-*.bin"))
    slots = [np.frombuffer(file.read_bytes(), EVENT_DTYPE).copy() for file in files]
    pairs = np.concatenate(slots)
    first = pairs[pairs["kind"] == Kind.CLOCK][0]
    tie = int(first["a"]) - int(first["begin"]) - zero
    for file, mine in zip(files, slots, strict=True):
        _shift_events(mine, tie, wrong)
        _shift_ready(mine.view(READY_DTYPE), tie, wrong)
        file.write_bytes(_sealed(mine))
    return out


def _shift_events(slots: NDArray[np.void], tie: int, wrong: Wrong) -> None:
    """In place. An instant of 0 was not set."""
    timed = ~np.isin(slots["kind"], WITHOUT_TIME)
    clock = slots["kind"] == Kind.CLOCK
    slots["a"][clock] += wrong.more(slots["begin"][clock] + tie)
    for name in ("begin", "end"):
        told = timed & (slots[name] != 0)
        slots[name][told] += wrong.more(slots[name][told] + tie)


def _shift_ready(slots: NDArray[np.void], tie: int, wrong: Wrong) -> None:
    mine = slots["kind"] == Kind.READY
    slots["base"][mine] += wrong.more(slots["base"][mine] + tie)


def _sealed(slots: NDArray[np.void]) -> bytes:
    """With the checksum of what it holds now."""
    if slots["kind"][-1] == Kind.TRAILER:
        used = int(slots["b"][-1])
        slots["c"][-1] = zlib.crc32(slots.tobytes()[: used * RECORD_NBYTES])
    return slots.tobytes()


def shifted_traces(folder: Path, out: Path, name: str, wrong: Wrong) -> Path:
    """A copy of a folder of profiler files, of which the one whose name begins so was written by a wrong clock."""
    out.mkdir()
    every = {file: json.loads(gzip.decompress(file.read_bytes())) for file in sorted(folder.glob("*.json.gz"))}
    zero_us = min(event["ts"] for one in every.values() for event in one["traceEvents"] if "dur" in event)
    for file, content in every.items():
        for event in content["traceEvents"] if file.name.startswith(name) else ():
            if "ts" in event:
                at_us = event["ts"] - zero_us
                event["ts"] += wrong.offset_ns / 1000 + at_us * wrong.ppm * 1e-6
        (out / file.name).write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return out
