"""Makes a run of many ranks from a real run of few: each rank's records again, on other hosts and a little later.

    recorded      rank 0, rank 1
    replicated    rank 0 1 2 3 4 5 6 7   8 9 10 ...     rank k has the records of rank k modulo those recorded
                  ╰──── node0 ────────╯  ╰── node1 ...  a host's clock reads 296 us more than that of the one before it

Every fifth rank launches a collective up to 1 ms later than recorded, another fifth for each collective, but before its
result arrives and before the next call. Everything else is as recorded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import DdptraceError
from ddptrace.record import RecordReader
from ddptrace.record.descriptions import MOST_CHUNKS, Texts
from ddptrace.record.segment import Dropped, trailer
from ddptrace.schema import (
    EVENT_DTYPE,
    MANIFEST,
    META,
    READY_DTYPE,
    Kind,
    Phase,
    rank_folder,
    segment_name,
)

Ints = NDArray[np.int64]
Slots = NDArray[np.void]

RANKS_A_HOST: Final = 8
APART_NS: Final = RANKS_A_HOST * 37_000
"""Difference between the clocks of a host and the next host."""

LATE_EVERY: Final = 5
LATE_STEPS: Final = 7  # number of different delays
LATE_MOST_NS: Final = 1_000_000
WITHOUT_TIME: Final = (Kind.STRING, Kind.READY)


@dataclass(frozen=True, slots=True)
class Source:
    """One recorded rank. `slots`: its records without trailers and without `groups`, the texts of its process groups by
    id. `called`: positions of its calls. `begin`, `end`: when each was launched, and over."""

    meta: dict[str, Any]
    slots: Slots
    groups: dict[int, dict[str, Any]]
    called: Ints
    begin: Ints
    end: Ints


def replicate(run: Path, out: Path, ranks: int) -> None:
    """Write a run of `ranks` ranks to `out`, and replace what is there.

    Raises: DdptraceError if the ranks of `run` called different numbers of collectives.
    """
    sources = [_source(folder) for folder in sorted(run.glob("rank-*"))]
    if len({len(source.called) for source in sources}) != 1:
        raise DdptraceError(f"the ranks of {run} called different numbers of collectives; record it again")
    room = _room(sources)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    manifest = json.loads((run / MANIFEST).read_text())
    (out / MANIFEST).write_text(json.dumps(manifest | {"world_size": ranks}))
    for rank in range(ranks):
        _write(sources[rank % len(sources)], out, rank, ranks, room)


def _room(sources: Sequence[Source]) -> Ints:
    """Return how much later each call could be launched: before its result arrives on any rank, and before the next
    call."""
    room = np.min([one.end for one in sources], axis=0) - np.max([one.begin for one in sources], axis=0)
    after = np.min([np.diff(one.begin, append=one.begin[-1:] + LATE_MOST_NS) for one in sources], axis=0)
    least: Ints = np.minimum(room, after)
    return least


def called(run: Path) -> int:
    """Return how many collectives each rank of a run called, by its first rank."""
    return len(_source(run / rank_folder(0)).called)


def records_nbytes(run: Path) -> int:
    return sum(file.stat().st_size for file in run.glob("rank-*/*.bin"))


def _source(folder: Path) -> Source:
    slots = np.concatenate([np.frombuffer(file.read_bytes(), EVENT_DTYPE) for file in sorted(folder.glob("*.bin"))])
    kinds, texts = slots["kind"], RecordReader(folder).read().strings
    names = np.unique(slots["name"][kinds == Kind.GROUP]).tolist()
    told = (kinds == Kind.STRING) & np.isin(slots["name"], names)
    slots = slots[~told & ~np.isin(kinds, (Kind.NONE, Kind.TRAILER))]
    called = np.flatnonzero(slots["kind"] == Kind.CALL)
    groups = {name: json.loads(texts[name]) for name in names}
    meta = json.loads((folder / META).read_text())
    return Source(meta, slots, groups, called, slots["begin"][called], _over(slots, called))


def _over(slots: Slots, called: Ints) -> Ints:
    """Return when each call was over: at its completion, at the end of its wait or of its backward, whichever came
    first; without any of these, when it returned."""
    begin = slots["begin"][called]
    never = np.iinfo(np.int64).max
    over = np.full(len(called), never)
    order = np.argsort(slots["a"][called])
    seqs = slots["a"][called][order]
    for kind, field in ((Kind.WAIT, "end"), (Kind.DONE, "begin")):
        rows = slots[slots["kind"] == kind]
        at = np.searchsorted(seqs, rows["a"]).clip(max=len(seqs) - 1)
        known = seqs[at] == rows["a"]
        np.minimum.at(over, order[at[known]], rows[field][known])
    for phase in slots[(slots["kind"] == Kind.PHASE) & (slots["flags"] == Phase.BACKWARD)]:
        inside = (begin >= phase["begin"]) & (begin < phase["end"])
        over[inside] = np.minimum(over[inside], phase["end"])
    return np.where(over == never, slots["end"][called], over)


def _write(source: Source, out: Path, rank: int, ranks: int, room: Ints) -> None:
    host = rank // RANKS_A_HOST
    slots = source.slots.copy()
    _launch_later(slots, source.called, _late_ns(rank, room))
    _shift(slots, host * APART_NS)
    folder = out / rank_folder(rank)
    folder.mkdir()
    body = slots.tobytes() + _described(source.groups, ranks)
    (folder / segment_name(0)).write_bytes(body + trailer(body, dropped=Dropped(), final=True))
    own = {"rank": rank, "host": f"node{host}", "pid": source.meta["pid"] + rank}
    machine = {name: f"{source.meta[name]}-{host}" for name in ("boot_id",) if name in source.meta}
    (folder / META).write_text(json.dumps(source.meta | own | machine))


def _late_ns(rank: int, room: Ints) -> Ints:
    """Return how much later this rank launches each of its calls."""
    its_turn = (np.arange(len(room)) + rank) % LATE_EVERY == 0
    most = (room // 2).clip(0, LATE_MOST_NS)
    return np.where(its_turn, most * (1 + rank % LATE_STEPS) // LATE_STEPS, 0)


def _launch_later(slots: Slots, called: Ints, late_ns: Ints) -> None:
    """Launch calls later, in place. Neither a call's return nor a wait for it precedes its launch."""
    launch = slots["begin"][called] + late_ns
    slots["begin"][called] = launch
    slots["end"][called] = np.maximum(slots["end"][called], launch)
    by_seq = dict(zip(slots["a"][called].tolist(), launch.tolist(), strict=True))
    waits = np.flatnonzero(slots["kind"] == Kind.WAIT)
    first = [by_seq.get(seq, 0) for seq in slots["a"][waits].tolist()]
    slots["begin"][waits] = np.maximum(slots["begin"][waits], np.array(first, np.int64))


def _shift(slots: Slots, by_ns: int) -> None:
    """Shift the monotonic and the wall clock, in place. An instant of 0 was not set."""
    timed = ~np.isin(slots["kind"], WITHOUT_TIME)
    for name in ("begin", "end"):
        slots[name][timed & (slots[name] != 0)] += by_ns
    slots["a"][slots["kind"] == Kind.CLOCK] += by_ns
    ready = slots.view(READY_DTYPE)
    ready["base"][ready["kind"] == Kind.READY] += by_ns


def _described(groups: dict[int, dict[str, Any]], ranks: int) -> bytes:
    """Return the texts of process groups, which now hold all ranks."""
    records: list[bytes] = []

    def write(shape: Struct, *fields: Any) -> bool:
        records.append(shape.pack(*fields))
        return True

    texts = Texts(write, MOST_CHUNKS)
    for number, group in groups.items():
        texts.write_out(number, json.dumps(group | {"ranks": list(range(ranks)), "size": ranks}))
    return b"".join(records)
