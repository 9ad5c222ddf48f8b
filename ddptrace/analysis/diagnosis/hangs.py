"""Who waits for whom in each process group, as far as the last calls of its ranks tell.

turn      5    6    7    8
rank 0    x    x    w              waits for 7, which not all have called
rank 1    x    x                   has not come: it is what the others wait for
rank 2    x    x    w
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddptrace.analysis.diagnosis.places import (
    at_words,
    call_words,
    group_words,
    likely_words,
    op_words,
    seconds,
    where_words,
)
from ddptrace.analysis.diagnosis.tables import Verdict
from ddptrace.analysis.matching.calls import GroupCall, GroupCalls
from ddptrace.analysis.matching.desync import parting
from ddptrace.analysis.tables.ranks import DesyncRow
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState
from ddptrace.ops import SEND, family_of
from ddptrace.schema import line_words
from ddptrace.units import named, size

PATIENCE_NS: Final = 5 * 10**9
PATIENCE_STEPS: Final = 10
"""A rank that the others have waited for longer than both is not just late."""
IDLE_NS: Final = 60 * 10**9
"""The same where no rank waits for another: a program may compute so long and leave no record."""


def patience_ns(job: JobState) -> int:
    return max(PATIENCE_NS, PATIENCE_STEPS * max((rank.step_ns or 0 for rank in job.ranks), default=0))


def hang_verdicts(job: JobState) -> list[Verdict]:
    """By group: "mismatch", "stuck", "message" or "slow". Where ranks wait for each other in two, both say so."""
    found = [verdict for name, ranks, shown in _groups(job) for verdict in _of_group(job, name, ranks, shown)]
    return [_in_circle(one, found) for one in found]


def _groups(job: JobState) -> Iterator[tuple[str, tuple[int, ...], list[GroupOnRank]]]:
    """Name, ranks (of those that are known), and what those that are here show. Groups of one name may differ."""
    known: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for state in job.ranks:
        for group in state.groups:
            known[group.name] |= {group.ranks} - {()}
    for name, sets in sorted(known.items()):
        for ranks in sorted(sets) or [()]:
            shown = [
                GroupOnRank(state, own) for state in job.ranks for own in [_own(state, name, ranks, len(sets))] if own
            ]
            yield name, ranks or tuple(on_rank.rank.rank for on_rank in shown), shown


def _own(state: RankState, name: str, ranks: tuple[int, ...], alike: int) -> GroupState | None:
    for group in state.groups:
        if group.name == name and (group.ranks == ranks or (not group.ranks and alike < 2)):
            return group
    return GroupState(name, ranks, 0, ()) if state.rank in ranks else None


def _of_group(job: JobState, name: str, ranks: tuple[int, ...], shown: list[GroupOnRank]) -> Iterator[Verdict]:
    if all(on_rank.rank.counted for on_rank in shown):
        mismatch = mismatch_verdict(job, name, shown)
        if mismatch is not None:
            yield mismatch
            return
        yield from _behind(job, name, ranks, shown)
        yield from _messages(job, name, shown)
    yield from _unanswered(job, name, ranks, shown)


# Ranks that have not come ---------------------------------------------------------------------------------------------


def _behind(job: JobState, name: str, ranks: tuple[int, ...], shown: Sequence[GroupOnRank]) -> Iterator[Verdict]:
    """Of the first turn that some have called and others have not."""
    turns = dict.fromkeys(ranks, 0) | {on_rank.rank.rank: on_rank.own.turns for on_rank in shown}
    turn = min(turns.values(), default=0)
    absent = tuple(rank for rank, count in turns.items() if count == turn)
    calls = {on_rank.rank.rank: call for on_rank in shown for call in on_rank.own.calls if call.turn == turn}
    waiting = {
        on_rank.rank.rank: calls[on_rank.rank.rank]
        for on_rank in shown
        if on_rank.rank.rank in calls and _waits(on_rank, calls)
    }
    if waiting and len(absent) < len(turns):
        yield _verdict(job, name, waiting, absent)


def _waits(on_rank: GroupOnRank, calls: dict[int, LastCall]) -> bool:
    """A root may be done, and one that has left as it should does not wait."""
    return not _has_left(on_rank.rank) and calls[on_rank.rank.rank].done is not True


def _verdict(job: JobState, name: str, waiting: dict[int, LastCall], absent: tuple[int, ...]) -> Verdict:
    call = min(waiting.values(), key=lambda one: one.launch_at_ns)
    age_ns = job.now_at_ns - call.launch_at_ns
    kind = "stuck" if age_ns > patience_ns(job) else "slow"
    have = "has" if len(absent) == 1 else "have"
    said = f"{named('rank', absent)} {have} not arrived: {call_words(call, name)}, for {seconds(age_ns)}"
    return Verdict(
        kind,
        *_said(kind, said, likely_words(job, absent)),
        name,
        call.turn,
        op_words(call.op),
        call.nbytes,
        tuple(waiting),
        absent,
        where_words(job, absent),
        age_ns,
    )


def _said(kind: str, sentence: str, likely: str) -> tuple[str, str]:
    """What may end any moment needs no reason."""
    return (f"just now {sentence}", "") if kind == "slow" else (sentence, likely)


def _messages(job: JobState, name: str, shown: Sequence[GroupOnRank]) -> Iterator[Verdict]:
    """Sends without a receive and receives without a send, of ranks that wait there."""
    counts = {(one.rank.rank, other.peer, other.is_send): other.count for one in shown for other in one.own.messages}
    for on_rank in shown:
        for own in on_rank.own.messages:
            matched = counts.get((own.peer, on_rank.rank.rank, not own.is_send), 0)
            call = next((call for call in own.calls if call.turn == matched), None)
            peer = next((other for other in shown if other.rank.rank == own.peer), None)
            if call is None or peer is None or call.done is True or on_rank.rank.pending is None:
                continue
            yield _message_verdict(job, name, on_rank.rank, call, own.peer)


def _message_verdict(job: JobState, name: str, rank: RankState, call: LastCall, peer: int) -> Verdict:
    age_ns = job.now_at_ns - call.launch_at_ns
    other = "received it" if family_of(call.op) is SEND else "sent it"
    kind = "message" if age_ns > patience_ns(job) else "slow"
    said = f"rank {peer} has not {other}: rank {rank.rank} is in {call_words(call, name)}, for {seconds(age_ns)}"
    return Verdict(
        kind,
        *_said(kind, said, likely_words(job, (peer,))),
        name,
        call.turn,
        op_words(call.op),
        call.nbytes,
        (rank.rank,),
        (peer,),
        where_words(job, (peer,)),
        age_ns,
    )


# Calls that all have made, or that nothing can be compared with -------------------------------------------------------


def _unanswered(job: JobState, name: str, ranks: tuple[int, ...], shown: Sequence[GroupOnRank]) -> Iterator[Verdict]:
    """A collective that does not end although nobody is missing, or nobody is known to be."""
    comparable = all(on_rank.rank.counted for on_rank in shown)
    inside = {
        on_rank.rank.rank: on_rank.rank.pending
        for on_rank in shown
        if on_rank.rank.pending is not None and on_rank.rank.pending_group == name and not on_rank.rank.closed
    }
    if not inside or (comparable and (len(inside) < len(ranks) or len({on_rank.own.turns for on_rank in shown}) > 1)):
        return
    last = max(inside.values(), key=lambda one: one.launch_at_ns)
    age_ns = job.now_at_ns - last.launch_at_ns
    if age_ns > patience_ns(job) and not family_of(last.op).is_message:
        who = "all ranks have called it" if comparable else f"{named('rank', inside)} waits in it"
        why = "the network between them" if comparable else "some calls were not recorded, so none can be compared"
        yield Verdict(
            "stuck",
            f"{call_words(last, name)} does not end: {who}, for {seconds(age_ns)}",
            why,
            name,
            last.turn,
            op_words(last.op),
            last.nbytes,
            tuple(inside),
            (),
            (),
            age_ns,
        )


def idle_verdict(job: JobState) -> Verdict | None:
    """Where no rank does anything, and none waits for another."""
    here = [rank for rank in job.ranks if not rank.closed and rank.alive]
    limit = max(IDLE_NS, patience_ns(job))
    since_ns = min((job.now_at_ns - rank.last_at_ns for rank in here), default=0)
    if since_ns <= limit:
        return None
    ranks = tuple(rank.rank for rank in here)
    said = f"{named('rank', ranks)} recorded nothing of the training for {seconds(since_ns)}"
    return Verdict(
        "stuck", said, likely_words(job, ranks), absent=ranks, where=where_words(job, ranks), age_ns=since_ns
    )


def _has_left(rank: RankState) -> bool:
    return rank.closed and rank.failure is None


def _in_circle(verdict: Verdict, found: Sequence[Verdict]) -> Verdict:
    waiting, absent = set(verdict.waiting), set(verdict.absent)
    for other in found:
        if other is not verdict and absent & set(other.waiting) and waiting & set(other.absent):
            return replace(verdict, likely="they wait for each other: " + other.sentence)
    return verdict


# Ranks that called different things at one turn -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupOnRank:
    """A group on one rank. `own` is empty where it has not called in it."""

    rank: RankState
    own: GroupState


def mismatch_verdict(job: JobState, name: str, shown: Sequence[GroupOnRank]) -> Verdict | None:
    calls = [
        GroupCalls(on_rank.rank.rank, [_mark(call) for call in on_rank.own.calls])
        for on_rank in shown
        if on_rank.own.calls
    ]
    found = parting(name, calls) if len(calls) > 1 else None
    if found is None or found.turn is None:
        return None
    rows = [row for row in found.rows if row.op and row.turn == found.turn]
    there = {on_rank.rank.rank: call for on_rank in shown for call in on_rank.own.calls if call.turn == found.turn}
    if not rows:
        return None
    absent = tuple(row.rank for row in rows)
    waiting = tuple(rank for rank in there if rank not in absent)
    return Verdict(
        "mismatch",
        _sentence(rows, waiting, there),
        _meant(rows, waiting),
        name,
        found.turn,
        op_words(rows[0].expected_op),
        rows[0].expected_nbytes,
        waiting,
        absent,
        where_words(job, absent),
        job.now_at_ns - min(call.launch_at_ns for call in there.values()),
    )


def _mark(call: LastCall) -> GroupCall:
    return GroupCall(
        call.turn, call.op, call.nbytes, call.dtype, call.peer, call.origin, call.site, through=call.through
    )


def _sentence(rows: Sequence[DesyncRow], waiting: Sequence[int], there: Mapping[int, LastCall]) -> str:
    """As in "call #7 of group 0 is broadcast of 32 B on rank 1 at a.py:9, and barrier on ranks 0 and 2 at a.py:8"."""
    row = rows[0]
    own, theirs = (
        f"{op_words(op)}{f' of {size(nbytes)}' if nbytes else ''}{_detail(row, dtype, root)}"
        for op, nbytes, dtype, root in (
            (row.op, row.nbytes, row.dtype, row.root),
            (row.expected_op, row.expected_nbytes, row.expected_dtype, row.expected_root),
        )
    )
    return (
        f"call #{row.turn} of {group_words(row.group)} is {own} on {named('rank', _alike(rows))}"
        f"{_where(there[row.rank])}, and {theirs} on {named('rank', waiting)}{_where(there[row.expected_rank])}"
    )


def _alike(rows: Sequence[DesyncRow]) -> list[int]:
    """Those that made the same call as the first. What others made instead, their own lines tell."""
    calls = [(desync.op, desync.nbytes, desync.dtype, desync.root) for desync in rows]
    return [row.rank for row, call in zip(rows, calls, strict=True) if call == calls[0]]


def _where(call: LastCall) -> str:
    """No line of the program issues what a backward does."""
    if call.site is not None or call.bucket_of is None:
        return at_words(line_words(call.site, call.through))
    return f" in its backward (bucket of {call.bucket_of})"


def _detail(row: DesyncRow, dtype: str, root: int | None) -> str:
    if row.kind == "dtype":
        return f" in {dtype}"
    return f" with root {root}" if row.kind == "root" else ""


def _meant(rows: Sequence[DesyncRow], waiting: Sequence[int]) -> str:
    row, ranks = rows[0], named("rank", _alike(rows))
    return {
        "missing": f"{ranks} did not make the call of {named('rank', waiting)}",
        "extra": f"{ranks} made a call there that the others do not make",
        "reordered": "both make the same calls, in different order",
        "size": "every rank must give the same number of bytes",
        "dtype": "every rank must give the same dtype",
        "root": "every rank must name the same root",
    }.get(row.kind, "their programs make different calls there, or the same ones in different order")
