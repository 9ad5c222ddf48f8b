"""The last that every rank of a run recorded, read while the job runs or afterwards, and whether it is still there."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError
from ddptrace.load.rank_state import rank_state
from ddptrace.load.run_folder import (
    RecordedRank,
    check_version,
    is_run,
    names_first_attempt,
    open_folder,
    records_of,
)
from ddptrace.load.tables import BEAT_NS, BEATS, JobState, RankState
from ddptrace.record.directory import read_json
from ddptrace.schema import META, SCHEMA_VERSION

LEFT_NS: Final = 60 * 10**9
"""Clocks of hosts are closer than this: a run whose newest record is older is written by nobody."""
NEXT_BEAT_NS: Final = 3 * BEAT_NS // 2
"""A clock that is recorded has its next record by then."""
APART_NS: Final = 2 * 10**9
"""As a rule they are as close as this."""


@dataclass(frozen=True, slots=True)
class _Look:
    """`ranks` with what the system tells of their processes, and nothing inferred. `at_ns`: when, since the run's
    zero."""

    ranks: tuple[RankState, ...]
    world_size: int | None
    at_ns: int

    @property
    def in_sight(self) -> bool:
        return any(one.alive for one in self.ranks)

    @property
    def newest_ns(self) -> int:
        return max(one.beat_at_ns for one in self.ranks)


def read_job(path: Path) -> JobState:
    """The newest attempt of a run. Where no process of it is in sight and one recorded a moment ago, it takes up to
    three seconds more: its clock tells whether it goes on, in another container of this machine. Raises
    RunDirectoryError where `path` holds no run of ddptrace.trace, or one of another major schema version."""
    if not path.exists() and not names_first_attempt(path):
        raise RunDirectoryError(f"{path} does not exist; give the directory that ddptrace.trace writes to")
    if not names_first_attempt(path) and not is_run(path):
        raise RunDirectoryError(
            f"{path} holds no run of ddptrace.trace, whose records alone tell what a job was doing; give it a run"
            " directory"
        )
    look = _look(path)
    doubt_ns = _in_doubt_ns(look)
    if doubt_ns:
        time.sleep(doubt_ns / 1e9)
        look = _look(path)
    judged = tuple(_judged(one, look) for one in look.ranks)
    now_ns = max(look.at_ns, look.newest_ns) if look.in_sight else look.newest_ns
    return JobState(judged, look.world_size, now_ns, max(0, look.at_ns - look.newest_ns))


def _look(path: Path) -> _Look:
    folder = open_folder(newest_attempt(path))
    looked_at_ns = time.time_ns() - folder.zero_unix_ns  # reading many ranks takes a while, and all go on meanwhile
    ranks = tuple(_read(source, looked_at_ns + APART_NS) for source in folder.ranks)
    return _Look(ranks, folder.world_size, looked_at_ns)


def _in_doubt_ns(look: _Look) -> int:
    """For so long yet nothing tells whether a process ended that recorded on this machine a moment ago."""
    doubtful = [one.beat_at_ns for one in look.ranks if one.alive is False and not one.closed]
    return 0 if look.in_sight or not doubtful else max(0, max(doubtful) + NEXT_BEAT_NS + 1 - look.at_ns)


def newest_attempt(path: Path) -> Path:
    """Of a restarted job the last attempt that has a rank: it is the one that hangs."""
    found = {
        int(one.name.removeprefix("attempt-")): one
        for one in path.glob("attempt-*")
        if one.name.removeprefix("attempt-").isdecimal() and next(one.glob("rank-*"), None) is not None
    }
    return found[max(found)] if found else path


def _judged(state: RankState, look: _Look) -> RankState:
    """Of a rank on another machine the records of its clock tell, while others come. So they do for a moment where
    nobody is in sight that recorded here: all may be in another container of this machine."""
    if state.closed or state.alive:
        return state
    if state.alive is False and (look.in_sight or look.at_ns - state.beat_at_ns > NEXT_BEAT_NS):
        return state
    late = look.newest_ns - state.beat_at_ns > BEATS * BEAT_NS
    left = not look.in_sight and look.at_ns - look.newest_ns > LEFT_NS
    return replace(state, alive=None if left and not late else not late)


def _read(source: RecordedRank, until_ns: int) -> RankState:
    meta = read_json(source.folder / META) or {}
    check_version(meta.get("schema", SCHEMA_VERSION), source.folder / META)
    records = records_of(source.folder)
    return rank_state(records, meta, rank=source.rank, zero_unix_ns=source.zero_unix_ns, until_ns=until_ns)
