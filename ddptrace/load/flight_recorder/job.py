"""Finds the Flight Recorder dumps of a job, and reads the last that its ranks did.

A dump does not say of which rank it is: only its name does. `nccl_trace_rank_12`, `_dump_12`,
`comm_lib_trace_rank_12.json`: any name that ends in the rank counts, of a file that begins as a dump does. An empty
file of such a name is one that a rank began to write.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.findings import DAMAGED, Finding
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState
from ddptrace.load.flight_recorder.dump import Dump, DumpedGroup, DumpError, GroupName, read_dump
from ddptrace.load.tables import MOST_RANKS
from ddptrace.ops import family_of
from ddptrace.record.directory import open_regular
from ddptrace.units import named

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
            dump = read_dump(path)
            _check_rank(rank, dump)
            dumps[rank] = dump
        except DumpError as error:
            doubts[rank] = (DAMAGED(f"rank {rank}", f"{printable(path.name)} was left out: {error}"),)
    if not dumps:
        first = doubts[min(doubts)][0]
        raise RunDirectoryError(f"no dump in {printable(folder)} can be read: {first.message}")
    return _job(dumps, doubts)


def _check_rank(rank: int, dump: Dump) -> None:
    """Raise DumpError if the dump is of another rank than its name says: a rank is in each of its groups."""
    known = [ranks for _, ranks in dump.groups if ranks]
    if known and not any(rank in ranks for ranks in known):
        largest = max(known, key=len)
        told = named("rank", largest)
        raise DumpError(f"its name says rank {rank}, and its groups are of {told}: it may be of another job")


def _job(dumps: Mapping[int, Dump], doubts: Mapping[int, tuple[Finding, ...]]) -> JobState:
    members, messaging = _members(dumps, doubts), _messaging(dumps.values())
    ranks = tuple(_rank(rank, dump, members, messaging) for rank, dump in dumps.items())
    told = {rank for group in members.values() for rank in group}
    world_size = max(told or (*dumps, *doubts)) + 1
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


# Which files are dumps ------------------------------------------------------------------------------------------------


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
    empty: list[tuple[str, int, Path]] = []
    for path in sorted(paths):
        named = NAME.fullmatch(path.name)
        if named is None or int(named["rank"]) >= MOST_RANKS:
            continue
        prefix, rank, begin = named["prefix"], int(named["rank"]), _begin(path)
        if begin == b"":
            empty.append((prefix, rank, path))
        elif begin is not None and BEGINS.match(begin):
            found[prefix][rank].append(path)
    for prefix, rank, path in empty:
        if prefix in found and rank not in found[prefix]:
            found[prefix][rank].append(path)
    return found


def _begin(path: Path) -> bytes | None:
    """Return the first bytes of a file; None where it cannot be opened."""
    try:
        with open_regular(path) as file:
            return file.read(HEAD_NBYTES)
    except OSError:
        return None


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
