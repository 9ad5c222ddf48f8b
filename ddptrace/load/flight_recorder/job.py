"""The last that the ranks of a job did, as their Flight Recorders dumped it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.findings import DAMAGED, Finding
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState
from ddptrace.load.flight_recorder.dump import Dump, DumpedGroup, DumpError, GroupName, read_dump
from ddptrace.load.flight_recorder.files import find_dumps
from ddptrace.ops import family_of

WORLD: Final = ("0", "default_pg")
"""The name of the group of all ranks, or its label."""


def read_dumps(folder: Path) -> JobState | None:
    """Read the dumps in a folder, or in the folders in it; None if there are none.

    A dump that cannot be read is a doubt about its rank. Raises RunDirectoryError if none can be read, or if the folder
    holds the dumps of more than one job."""
    paths = find_dumps(folder)
    if not paths:
        return None
    dumps, doubts = dict[int, Dump](), dict[int, tuple[Finding, ...]]()
    for rank, path in paths.items():
        try:
            dumps[rank] = read_dump(path)
        except DumpError as error:
            doubts[rank] = (DAMAGED(f"rank {rank}", f"{printable(path.name)} was left out: {error}"),)
    if not dumps:
        first = doubts[min(doubts)][0]
        raise RunDirectoryError(f"no dump in {printable(folder)} can be read: {first.message}")
    return _job(dumps, doubts)


def _job(dumps: Mapping[int, Dump], doubts: Mapping[int, tuple[Finding, ...]]) -> JobState:
    members, messaging = _members(dumps, doubts), _messaging(dumps.values())
    ranks = tuple(_rank(rank, dump, members, messaging) for rank, dump in dumps.items())
    told = {rank for group in members.values() for rank in group}
    world_size = max((*told, *dumps, *doubts)) + 1
    newest_ns = max(one.last_at_ns for one in ranks)
    return JobState(ranks, world_size, newest_ns, 0, doubts=doubts, dumped=True)


def _members(dumps: Mapping[int, Dump], doubts: Iterable[int]) -> dict[GroupName, tuple[int, ...]]:
    """Return the ranks of each group. Gloo's recorder does not tell them: then they are those that have called in it,
    and all ranks in the group of all."""
    callers: dict[GroupName, set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        for name, group in dump.groups.items():
            callers[name].add(rank)
            if not name[1] and {name[0], group.label} & set(WORLD):
                callers[name] |= {*dumps, *doubts}
    return {name: name[1] or tuple(sorted(ranks)) for name, ranks in callers.items()}


def _messaging(dumps: Iterable[Dump]) -> set[GroupName]:
    """Return the groups with sends and receives: torch counts these with the collectives where it tells how far the
    group is."""
    return {name for dump in dumps for name, call in dump.calls if family_of(call.op).is_message}


def _rank(rank: int, dump: Dump, members: Mapping[GroupName, tuple[int, ...]], messaging: set[GroupName]) -> RankState:
    calls: dict[GroupName, list[LastCall]] = defaultdict(list)
    for name, call in dump.calls:
        calls[name].append(call)
    groups = tuple(
        _group(group, members[name], calls[name], is_counted=name not in messaging)
        for name, group in sorted(dump.groups.items())
    )
    pending = next(((name, call) for name, call in dump.calls if not call.done), None)
    last_at_ns = max((call.launch_at_ns for _, call in dump.calls), default=0)
    return RankState(
        rank=rank,
        host="",
        pid=0,
        alive=None,
        stopped=False,
        closed=False,
        counted=True,
        step=None,
        step_ns=None,
        phase=None,
        did_last="",
        pending=pending[1] if pending else None,
        pending_group=pending[0][0] if pending else "",
        pulse=None,
        last_at_ns=last_at_ns,
        beat_at_ns=last_at_ns,
        failure=None,
        failed_at_ns=None,
        groups=groups,
    )


def _group(group: DumpedGroup, ranks: tuple[int, ...], calls: list[LastCall], *, is_counted: bool) -> GroupState:
    """`is_counted`: only collectives count in torch's status of the group. An entry of a collective that torch's status
    calls ended does not tell its own end."""
    turns = [call.turn for call in calls if not family_of(call.op).is_message]
    if is_counted and group.launched is not None:
        turns.append(group.launched)
    return GroupState(group.name[0], ranks, max(turns, default=-1), tuple(calls), label=group.label)
