"""Which calls on different ranks were one collective: the k-th of their group, where nothing speaks against it.

Ranks that ddptrace recorded from their first call on are matched up to where they part, which is told. What is not
counted from there (files of others, sampled steps, lost records) is matched whole or not at all. Where not every rank
has the calls from the first on, those are compared that all have:

rank 0   let go: 5    5 6 7 8 9
rank 1   let go: 7        7 8 9        7 8 9, by their numbers
rank 0   steps 0 . . 3 . . 6
rank 1   steps 0 . 2 3 . . 6          those of steps 0, 3 and 6, which both recorded

rank 0   k k ProfilerStep#10 8, #11 20
rank 1   k   ProfilerStep#10 8, #11 20    without the kernels k, launched before the profiler started
rank 0   Seq 7 8 9
rank 1   Seq   8 9 10                     8 and 9, where the files have the backend's own numbers
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from ddptrace.analysis.collectives.rows import HOOK_OP
from ddptrace.analysis.intervals import Pieces, pairs
from ddptrace.analysis.matching.calls import GroupCalls
from ddptrace.analysis.matching.desync import Parting, parting
from ddptrace.analysis.matching.proof import RankInGroup, Sighting, are_counted, doubt
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import DesyncRow, MatchRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.ops import SPARSE, family_of
from ddptrace.rows import replaced
from ddptrace.schema import Evidence

RankCollectives = tuple[RankFacts, Sequence[CollectiveRow], Sequence[StepRow]]
"""What one rank shows: its collectives in launch order, its steps in time order."""
GroupKey = tuple[str, tuple[int, ...]]  # name and ranks; ranks are () where they are not known


@dataclass(frozen=True, slots=True)
class Refused:
    """A group whose collectives are not compared across ranks."""

    group: str
    ranks: tuple[int, ...]
    reason: str  # the end of a sentence
    whole: bool  # all of its ranks recorded all of their calls


@dataclass(frozen=True, slots=True)
class Matching:
    """`rows`: in order of first start, `match` being their position, with nothing yet of arrivals. `refused`: groups
    that cannot be compared. `desyncs`: where ranks part."""

    rows: tuple[MatchRow, ...]
    refused: tuple[Refused, ...] = ()
    desyncs: tuple[DesyncRow, ...] = ()


def match_ranks(ranks: Sequence[RankCollectives]) -> Matching:
    """`ranks`: by rank. Groups of which one rank alone is here are left out."""
    rows: list[MatchRow] = []
    refused: list[Refused] = []
    desyncs: list[DesyncRow] = []
    for (name, _), shown in sorted(_groups(ranks).items()):
        if len(shown) < 2:
            continue
        group, ordinals = aligned(shown)
        if all(member.whole and not member.sampled for member in shown):
            parted = parting(name, [GroupCalls(member.rank, member.sightings) for member in shown])
            desyncs += parted.rows
            rows += _matched(name, group, _agreed(ordinals, parted))
        elif (reason := doubt(group)) is not None:
            refused.append(_refused(name, group, reason))
        else:
            rows += _matched(name, group, ordinals)
    rows.sort(key=attrgetter("first_start_at_ns", "group", "ordinal", "ranks"))
    matches = tuple(replaced(row, match=match) for match, row in enumerate(rows))
    return Matching(matches, tuple(refused), tuple(desyncs))


def with_matches(rows: Iterable[CollectiveRow], matches: Sequence[MatchRow]) -> Iterator[CollectiveRow]:
    """The rows, each with its collective's position in `matches`."""
    found = {key: row.match for row in matches for key in zip(row.ranks, row.seqs, strict=True)}
    for row in rows:
        match = found.get((row.rank, row.seq))
        yield row if match is None else replaced(row, match=match)


def _groups(ranks: Sequence[RankCollectives]) -> dict[GroupKey, list[RankInGroup]]:
    """By group, what each of its ranks shows of it. Different groups may have one name: their ranks differ."""
    members: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for facts, *_ in ranks:
        for name, those in facts.groups:
            members[name] |= {those} - {()}
    only = {name: next(iter(those)) for name, those in members.items() if len(those) == 1}
    found: dict[GroupKey, list[RankInGroup]] = defaultdict(list)
    for facts, rows, steps in ranks:
        own, kept = dict(facts.groups), facts.kept
        counted = set() if facts.recorded else _counted_groups(rows)
        for name, sightings in _sightings(rows, steps, numbered=counted, all_numbered=kept.let_go > 0).items():
            key = name, own.get(name) or only.get(name, ())
            whole, let_go = _is_whole(facts), kept.let_go > 0
            found[key].append(RankInGroup(facts.rank, whole, tuple(sightings), let_go, kept.sampled, name in counted))
    return {key: _with_silent(key, shown, ranks) for key, shown in found.items()}


def _counted_groups(rows: Sequence[CollectiveRow]) -> set[str]:
    """Find the groups whose collectives all have different numbers from the backend: coalesced ones share theirs."""
    turns: dict[str, list[int | None]] = defaultdict(list)
    for row in rows:
        if row.part == 0 and _is_of_all_ranks(row):
            turns[row.group].append(row.turn)
    return {name for name, mine in turns.items() if None not in mine and len(set(mine)) == len(mine)}


def _is_whole(facts: RankFacts) -> bool:
    return facts.recorded and not facts.dropped


def _with_silent(key: GroupKey, shown: Sequence[RankInGroup], ranks: Sequence[RankCollectives]) -> list[RankInGroup]:
    """Also those of its ranks that called nothing of it, where that is known."""
    called = {member.rank for member in shown}
    silent = [
        RankInGroup(facts.rank, whole=True, sightings=())
        for facts, *_ in ranks
        if facts.rank not in called
        and key in facts.groups
        and facts.rank in key[1]
        and _is_whole(facts)
        and not facts.kept.let_go
        and not facts.kept.sampled
    ]
    return sorted([*shown, *silent], key=attrgetter("rank")) if all(member.whole for member in shown) else list(shown)


def _sightings(
    rows: Sequence[CollectiveRow], steps: Sequence[StepRow], *, numbered: Set[str], all_numbered: bool
) -> dict[str, list[Sighting]]:
    """One rank's collectives by group, in launch order. The end of one in several parts is that of the last. What the
    host saw alone does not tell when a collective ended. `numbered`: groups of which some are left out, and each has
    its turn; `all_numbered`: all groups."""
    ends = {row.seq: row.exec_end_at_ns for row in rows if row.evidence is not Evidence.HOST}
    found: dict[str, list[Sighting]] = defaultdict(list)
    for row, launched_in in zip(rows, _launched_in(rows, steps), strict=True):
        if row.part == 0 and _is_of_all_ranks(row):
            mine = found[row.group]
            turn = row.turn if all_numbered or row.group in numbered else len(mine)
            if turn is not None:
                mine.append(_sighting(row, turn, launched_in, ends.get(row.seq)))
    return found


def _is_of_all_ranks(row: CollectiveRow) -> bool:
    """All ranks of the group take part, as far as is known: what a hook does nobody sees."""
    return row.op != HOOK_OP and not family_of(row.op).is_message


def _sighting(row: CollectiveRow, turn: int, launched_in: int | None, end_at_ns: int | None) -> Sighting:
    return Sighting(
        turn,
        row.op,
        None if row.op == SPARSE else row.nbytes,
        row.dtype,
        row.peer,
        row.origin,
        row.site,
        row.step,
        through=row.through,
        seq=row.seq,
        launched_in=launched_in,
        begin_at_ns=None if end_at_ns is None else row.exec_start_at_ns,
        end_at_ns=end_at_ns,
        exact=row.evidence is not Evidence.BACKEND,
        is_launch_recorded=row.launch_recorded,
    )


def _launched_in(rows: Sequence[CollectiveRow], steps: Sequence[StepRow]) -> list[int | None]:
    """The step that issued each."""
    walls = Pieces.numbered(pairs((step.begin_at_ns, step.end_at_ns) for step in steps))
    at = walls.at(np.array([row.launch_at_ns for row in rows], np.int64)).tolist()
    return [steps[position].step if position >= 0 else None for position in at]


def _agreed(ordinals: Sequence[int], parted: Parting) -> Sequence[int]:
    """Those before the ranks part."""
    return ordinals if parted.turn is None else ordinals[: bisect_left(ordinals, parted.turn)]


def _matched(name: str, group: Sequence[RankInGroup], ordinals: Sequence[int]) -> Iterator[MatchRow]:
    """As far as all ranks go, those whose execution all of them know. `match` is filled in later."""
    ranks = tuple(member.rank for member in group)
    for ordinal, *row in zip(ordinals, *(member.sightings for member in group), strict=False):
        begins = [one.begin_at_ns for one in row if one.begin_at_ns is not None]
        ends = [one.end_at_ns for one in row if one.end_at_ns is not None]
        if len(begins) < len(row) or len(ends) < len(row):
            continue
        sizes = {one.nbytes for one in row if one.nbytes}
        nbytes = sizes.pop() if len(sizes) == 1 else None
        yield MatchRow(
            -1,
            name,
            ordinal,
            row[0].op,
            nbytes,
            ranks,
            tuple(one.seq for one in row),
            min(begins),
            max(begins),
            min(ends),
            max(ends),
            transfer_ns=min(end - begin for begin, end in zip(begins, ends, strict=True)),
        )


def _refused(name: str, group: Sequence[RankInGroup], reason: str) -> Refused:
    return Refused(name, tuple(member.rank for member in group), reason, all(member.whole for member in group))


# The same stretch on all ranks ----------------------------------------------------------------------------------------


def aligned(group: Sequence[RankInGroup]) -> tuple[list[RankInGroup], Sequence[int]]:
    """The ranks with those collectives only that all of them show, and the number in the group of each. Where they are
    sampled, what lies between was not counted: they are numbered as they come."""
    if any(member.sampled for member in group):
        group = _of_common_steps(group)
    elif any(member.let_go for member in group) or are_counted(group):
        return _of_common_turns(group)
    elif not all(member.whole for member in group) and len({len(member.sightings) for member in group}) > 1:
        group = _launched_in_common_steps(group) or group
    return list(group), range(max(len(member.sightings) for member in group))


def _of_common_steps(group: Sequence[RankInGroup]) -> list[RankInGroup]:
    """By the step that launched them: queued near its end, one may run in it on one rank and after it on another."""
    common = set.intersection(*({sighting.launched_in for sighting in seen.sightings} for seen in group)) - {None}
    return [_chosen(seen, [sighting.launched_in in common for sighting in seen.sightings]) for seen in group]


def _launched_in_common_steps(group: Sequence[RankInGroup]) -> list[RankInGroup] | None:
    """Choose the collectives that the steps of all files launched. Files differ in how much was queued before the
    profiler started. Return None if a step launched more on one rank than on another."""
    launched = [_chosen(seen, [sighting.is_launch_recorded for sighting in seen.sightings]) for seen in group]
    chosen = _of_common_steps(launched)
    steps = {tuple(sighting.launched_in for sighting in seen.sightings) for seen in chosen}
    return chosen if len(steps) == 1 and () not in steps else None


def _of_common_turns(group: Sequence[RankInGroup]) -> tuple[list[RankInGroup], Sequence[int]]:
    turns = [
        [sighting.turn for sighting in seen.sightings] if seen.let_go or seen.counted else range(len(seen.sightings))
        for seen in group
    ]
    common = set.intersection(*map(set, turns))
    chosen = [_chosen(seen, [turn in common for turn in mine]) for seen, mine in zip(group, turns, strict=True)]
    return chosen, sorted(common)


def _chosen(seen: RankInGroup, wanted: Sequence[bool]) -> RankInGroup:
    chosen = tuple(sighting for sighting, is_wanted in zip(seen.sightings, wanted, strict=True) if is_wanted)
    return replace(seen, sightings=chosen)
