"""The last that every rank of a run recorded, read while the job runs or afterwards, and whether it is still there."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError
from ddptrace.load.rank_state import rank_state
from ddptrace.load.run_folder import RecordedRank, check_version, is_run, names_first_attempt, open_folder
from ddptrace.load.tables import BEAT_NS, BEATS, JobState, RankState
from ddptrace.record import RecordReader
from ddptrace.record.directory import read_json
from ddptrace.schema import META, SCHEMA_VERSION

LEFT_NS: Final = 60 * 10**9
"""Clocks of hosts are closer than this: a run whose newest record is older is written by nobody."""
APART_NS: Final = 2 * 10**9
"""As a rule they are as close as this."""


def read_job(path: Path) -> JobState:
    """The newest attempt of a run. Raises RunDirectoryError where `path` holds no run of ddptrace.trace, or one of
    another major schema version."""
    if not path.exists() and not names_first_attempt(path):
        raise RunDirectoryError(f"{path} does not exist; give the directory that ddptrace.trace writes to")
    if not names_first_attempt(path) and not is_run(path):
        raise RunDirectoryError(
            f"{path} holds no run of ddptrace.trace, whose records alone tell what a job was doing; give it a run"
            " directory"
        )
    folder = open_folder(newest_attempt(path))
    looked_at_ns = time.time_ns() - folder.zero_unix_ns  # reading many ranks takes a while, and all go on meanwhile
    ranks = [_read(source, looked_at_ns + APART_NS) for source in folder.ranks]
    newest_ns = max(one.beat_at_ns for one in ranks)
    in_sight = any(one.alive for one in ranks)
    judged = tuple(_judged(one, in_sight, looked_at_ns, newest_ns) for one in ranks)
    now_ns = max(looked_at_ns, newest_ns) if in_sight else newest_ns
    return JobState(judged, folder.world_size, now_ns, max(0, looked_at_ns - newest_ns))


def newest_attempt(path: Path) -> Path:
    """Of a restarted job the last attempt that has a rank: it is the one that hangs."""
    found = {
        int(one.name.removeprefix("attempt-")): one
        for one in path.glob("attempt-*")
        if one.name.removeprefix("attempt-").isdecimal() and next(one.glob("rank-*"), None) is not None
    }
    return found[max(found)] if found else path


def _judged(state: RankState, in_sight: bool, looked_at_ns: int, newest_ns: int) -> RankState:
    """Of a rank on another machine the records of its clock tell, while others come. So they do for a moment where
    nobody is in sight that recorded here: all may be in another container of this machine."""
    if state.closed or state.alive:
        return state
    if state.alive is False and (in_sight or looked_at_ns - state.beat_at_ns > 1.5 * BEAT_NS):
        return state
    late = newest_ns - state.beat_at_ns > BEATS * BEAT_NS
    left = not in_sight and looked_at_ns - newest_ns > LEFT_NS
    return replace(state, alive=None if left and not late else not late)


def _read(source: RecordedRank, until_ns: int) -> RankState:
    meta = read_json(source.folder / META) or {}
    check_version(meta.get("schema", SCHEMA_VERSION), source.folder / META)
    try:
        records = RecordReader(source.folder).read()
    except OSError as error:
        raise RunDirectoryError(f"{source.folder} cannot be read: {error.strerror}; check its permissions") from error
    return rank_state(records, meta, rank=source.rank, zero_unix_ns=source.zero_unix_ns, until_ns=until_ns)
