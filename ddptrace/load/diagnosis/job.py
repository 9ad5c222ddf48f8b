"""The last that every rank of a run recorded, read while the job runs or afterwards, and whether it is still there.

Times of two ranks are compared only once it is known whether their clocks agree. The evidence:

it recorded between two looks      the rank goes on, and its newest record was written just now
it did not                         calls of one turn that it and another rank launched, which really lie close together
neither                            its own records, none of which can lie in the future
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ddptrace.errors import RunDirectoryError
from ddptrace.findings import DAMAGED, OTHER_RANK, OTHER_RUN, Finding
from ddptrace.load.diagnosis.rank_state import newest_at_ns, rank_state
from ddptrace.load.diagnosis.tables import BEAT_NS, BEATS, JobState, RankState
from ddptrace.load.run_folder import (
    RecordedRank,
    check_version,
    is_empty,
    is_of_another_run,
    is_run,
    names_first_attempt,
    open_folder,
    other_rank,
    records_of,
)
from ddptrace.record import Records
from ddptrace.record.directory import read_json
from ddptrace.schema import META, SCHEMA_VERSION

LEFT_NS: Final = 60 * 10**9
"""Clocks of hosts differ by less than this: if the newest record of a run is older, no process writes the run."""
NEXT_BEAT_NS: Final = 3 * BEAT_NS // 2
"""A rank that records its clock writes the next record within this time."""
APART_NS: Final = 2 * 10**9
"""Clocks of hosts usually differ by less than this."""
READ_NS: Final = 10**9 // 2
"""A killed rank may have recorded for this long after its records were read."""
LATE_NS: Final = BEATS * BEAT_NS
LATE_STEPS: Final = 2
"""Ranks that step together launch a call of one turn closer than this."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One rank at one look. `newest_ns`: time of its newest record by its own clock; None if unknown. `lead_ns`: how
    far that lies ahead of the look; slightly below 0 if the clocks agree and the rank goes on."""

    state: RankState
    newest_ns: int | None
    lead_ns: int
    said_world_size: int | None
    doubts: tuple[Finding, ...]
    is_foreign: bool  # its folder holds records of another run, or of another rank

    @property
    def in_time(self) -> bool:
        return -LATE_NS <= self.lead_ns <= APART_NS

    @property
    def excess_ns(self) -> int:
        """Nothing was recorded in the future."""
        return self.lead_ns if self.lead_ns > APART_NS else 0


@dataclass(frozen=True, slots=True)
class _Look:
    """All ranks at one look. `seen`: each with what the system reports about its process, and no inference. `at_ns`:
    time of the look, since the run's zero."""

    seen: tuple[_Seen, ...]
    world_size: int | None
    at_ns: int

    @property
    def ranks(self) -> tuple[RankState, ...]:
        return tuple(seen.state for seen in self.seen)

    @property
    def in_sight(self) -> bool:
        return any(rank.alive for rank in self.ranks)

    @property
    def newest_ns(self) -> int:
        return max(rank.beat_at_ns for rank in self.ranks)


def read_job(path: Path) -> JobState:
    """Read the newest attempt of a run.

    This takes up to four seconds longer if a rank seems late or ahead, or if no process is visible although a rank has
    just recorded. Such a rank may run on a machine with another clock, or in another container of this machine: if it
    records again, it goes on. Raises RunDirectoryError if `path` holds no run of ddptrace.trace, or a run of another
    major schema version."""
    if not path.exists() and not names_first_attempt(path):
        raise RunDirectoryError(f"{path} does not exist; give the directory that ddptrace.trace writes to")
    if not names_first_attempt(path) and not is_run(path):
        raise RunDirectoryError(
            f"{path} holds neither a run of ddptrace.trace nor dumps of torch's Flight Recorder, and only these show"
            " what a job was doing; give a folder with one of them"
        )
    look, apart_ns, silent = _looked_until_clear(path)
    judged = tuple(
        _judged(rank, look, is_silent=rank.rank in silent, is_apart=rank.rank in apart_ns) for rank in look.ranks
    )
    now_ns = max(look.at_ns, look.newest_ns) if look.in_sight else look.newest_ns
    doubts = {seen.state.rank: seen.doubts for seen in look.seen if seen.doubts}
    foreign = frozenset(seen.state.rank for seen in look.seen if seen.is_foreign)
    return JobState(judged, look.world_size, now_ns, max(0, look.at_ns - look.newest_ns), apart_ns, doubts, foreign)


def _looked_until_clear(path: Path) -> tuple[_Look, dict[int, int], set[int]]:
    """Return the ranks, read again with the lead of each clock removed once it is known; the leads, by rank; and the
    ranks that recorded nothing during the wait."""
    first = look = _look(path, {})
    doubt_ns, moved, silent = _in_doubt_ns(look), set[int](), set[int]()
    if doubt_ns:
        time.sleep(doubt_ns / 1e9)
        look = _look(path, {})
        moved = _moved(first, look)
        silent = {rank.rank for rank in look.ranks} - moved
    apart_ns = _apart_ns(look, moved)
    return (_look(path, apart_ns) if apart_ns else look), apart_ns, silent


def _look(path: Path, apart_ns: Mapping[int, int]) -> _Look:
    folder = open_folder(newest_attempt(path))
    looked_at_ns = time.time_ns() - folder.zero_unix_ns  # reading many ranks takes a while, and all go on meanwhile
    seen = tuple(
        _read(source, looked_at_ns + APART_NS, apart_ns.get(source.rank, 0)) for source in _begun(path, folder.ranks)
    )
    said = [one.said_world_size for one in seen if one.said_world_size is not None and not one.doubts]
    return _Look(seen, folder.world_size or max(said, default=None), looked_at_ns)


def _begun(path: Path, sources: Sequence[RecordedRank]) -> list[RecordedRank]:
    """Return the ranks that have begun: an empty folder says as little about its rank as a missing one."""
    begun = [source for source in sources if not is_empty(source.folder)]
    if not begun:
        raise RunDirectoryError(
            f"no rank has recorded anything in {path} yet: its folders are empty; look again while the job trains"
        )
    return begun


def _in_doubt_ns(look: _Look) -> int:
    """Return how long it stays open whether a rank goes on. It is open for a rank whose process ended although it has
    just recorded on this machine, and for a rank that seems late or ahead and may have another clock."""
    if any(_may_go_on(seen) and not seen.in_time for seen in look.seen):
        return NEXT_BEAT_NS + 1
    doubtful = [rank.beat_at_ns for rank in look.ranks if rank.alive is False and not rank.closed]
    left_ns = max(doubtful, default=0) + NEXT_BEAT_NS + READ_NS - look.at_ns
    return 0 if look.in_sight or not doubtful else min(max(0, left_ns), NEXT_BEAT_NS + READ_NS)


def _may_go_on(seen: _Seen) -> bool:
    return not seen.state.closed and seen.state.alive is not False and not seen.state.stopped


def _moved(first: _Look, second: _Look) -> set[int]:
    """Return the ranks that recorded anything between the two looks."""
    before = {seen.state.rank: seen.newest_ns for seen in first.seen}
    return {seen.state.rank for seen in second.seen if seen.newest_ns != before.get(seen.state.rank, seen.newest_ns)}


# Clocks that are apart ------------------------------------------------------------------------------------------------


def _apart_ns(look: _Look, moved: set[int]) -> dict[int, int]:
    """Return how far the clock of each rank is ahead of the reader's; if no rank goes on, of the first rank's. A rank
    that goes on records at every beat, so its newest record is about half a beat old. A rank that does not go on may
    seem in time by chance. Records of another run are not compared."""
    seen = {one.state.rank: one for one in look.seen if not one.doubts}
    known = {
        rank: 0 if one.in_time else one.lead_ns + BEAT_NS // 2
        for rank, one in seen.items()
        if rank in moved or (one.in_time and _may_go_on(one))
    }
    if seen and not known:
        first = min(seen, key=lambda rank: (seen[rank].excess_ns > 0, not seen[rank].in_time, rank))
        known = {first: seen[first].excess_ns}
    found = dict(known)
    for rank in seen.keys() - known.keys():
        states = ((seen[other].state, ahead_ns) for other, ahead_ns in known.items())
        told = (_ahead_by_calls_ns(seen[rank].state, other, ahead_ns) for other, ahead_ns in states)
        found[rank] = next((one for one in told if one is not None), seen[rank].excess_ns)
    return {rank: ahead_ns for rank, ahead_ns in sorted(found.items()) if ahead_ns}


def _ahead_by_calls_ns(state: RankState, other: RankState, other_ahead_ns: int) -> int | None:
    """Return the lead of a clock from launches of the same turn; None if there are none. Ranks wait for each other, so
    both launch at least one of all turns within a step or two, even if one of them is always late."""
    leads_ns = list(_leads_ns(state, other))
    if not leads_ns:
        return None
    lead_ns = min(leads_ns, key=abs)
    if state.step_ns is None or other.step_ns is None:
        return other_ahead_ns
    limit_ns = max(LATE_NS, LATE_STEPS * max(state.step_ns, other.step_ns))
    return other_ahead_ns + (lead_ns if abs(lead_ns) > limit_ns else 0)


def _leads_ns(state: RankState, other: RankState) -> Iterator[int]:
    """Yield how much later, by their clocks, the first rank launched each call that both launched."""
    if not (state.counted and other.counted):
        return
    groups = {(group.name, group.ranks): group for group in other.groups}
    for mine in state.groups:
        theirs = groups.get((mine.name, mine.ranks))
        launched = {call.turn: call.launch_at_ns for call in theirs.calls} if theirs is not None else {}
        yield from (call.launch_at_ns - launched[call.turn] for call in mine.calls if call.turn in launched)


# One rank -------------------------------------------------------------------------------------------------------------


def newest_attempt(path: Path) -> Path:
    """Return the last attempt of a restarted job that has a rank: this is the attempt that hangs."""
    found = {
        int(one.name.removeprefix("attempt-")): one
        for one in path.glob("attempt-*")
        if one.name.removeprefix("attempt-").isdecimal() and next(one.glob("rank-*"), None) is not None
    }
    return found[max(found)] if found else path


def _judged(state: RankState, look: _Look, *, is_silent: bool, is_apart: bool) -> RankState:
    """Decide whether a rank goes on. On another machine its clock's records decide, while other ranks record. They also
    decide for a moment if no process that recorded here is visible: all may be in another container. For a rank
    with a differing clock that recorded nothing between two looks, it is unknown when it was last alive."""
    if state.closed or state.alive:
        return state
    if state.alive is False and (look.in_sight or is_silent or look.at_ns - state.beat_at_ns > NEXT_BEAT_NS):
        return state
    late = look.newest_ns - state.beat_at_ns > BEATS * BEAT_NS
    left = not look.in_sight and ((is_silent and is_apart) or look.at_ns - look.newest_ns > LEFT_NS)
    return replace(state, alive=None if left and not late else not late)


def _read(source: RecordedRank, until_ns: int, apart_ns: int) -> _Seen:
    """Read one rank up to an instant; later if its clock is further ahead than known, so that no new record is left
    out."""
    meta = read_json(source.folder / META) or {}
    check_version(meta.get("schema", SCHEMA_VERSION), source.folder / META)
    records = records_of(source.folder)
    read_at_ns = time.time_ns() - source.zero_unix_ns
    newest_ns = newest_at_ns(records, source.zero_unix_ns)
    lead_ns = 0 if newest_ns is None else newest_ns - apart_ns - read_at_ns
    until_ns += lead_ns if lead_ns > APART_NS else 0
    state = rank_state(
        records, meta, rank=source.rank, zero_unix_ns=source.zero_unix_ns, until_ns=until_ns, apart_ns=apart_ns
    )
    doubts = tuple(_doubts(source, meta, records))
    said = meta.get("world_size")
    return _Seen(
        replace(state, counted=state.counted and not doubts),
        newest_ns,
        lead_ns,
        said if isinstance(said, int) and said > 0 else None,
        doubts,
        is_of_another_run(meta, source.manifest) or other_rank(source, meta) is not None,
    )


def _doubts(source: RecordedRank, meta: Mapping[str, Any], records: Records) -> Iterator[Finding]:
    """Yield the reasons why a rank's calls cannot be compared with those of others."""
    where, said = f"rank {source.rank}", other_rank(source, meta)
    if is_of_another_run(meta, source.manifest):
        message = (
            "its records have the id of another run: it entered its trace apart from rank 0, "
            "or its folder is left from an earlier run"
        )
        yield OTHER_RUN(where, message)
    if said is not None:
        message = f"its folder holds what rank {said} recorded: put the ranks' folders back as they were"
        yield OTHER_RANK(where, message)
    for damage in records.damaged:
        yield DAMAGED(where, f"{damage}: what this report says about this rank may be wrong")
