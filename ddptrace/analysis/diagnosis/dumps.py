"""What dumps of the Flight Recorder tell of a job: who is to blame, who waits for these, and who called other things.

Dumps hold neither when they were made nor what became of a process, so that nothing is said of how long a rank waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ddptrace.analysis.diagnosis.hangs import GroupOnRank, mismatch_verdict
from ddptrace.analysis.diagnosis.places import call_words, doubt_verdicts, op_words, place_words
from ddptrace.analysis.diagnosis.tables import RankPlace, Verdict
from ddptrace.analysis.diagnosis.waits import Culprit, GroupKey, Wait, Waits, Why, culprits
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState
from ddptrace.ops import family_of
from ddptrace.units import named

NO_DUMP: Final = "no dump was found here"
UNREAD: Final = "its dump cannot be read"
DUMPED: Final = "dumped"
COMPARED: Final = 10_000
"""Calls of a group, counted back, in which ranks are compared: Flight Recorders keep 2,000 as a rule."""
NO_LINES: Final = (
    "the dumps hold no stack frames, and so no line of the program: only pickles have them, unless they were left out"
)
LIKELY: Final = {
    Why.ABSENT: "its program does not come to its next call: it computes, sleeps, is stopped, or a lock holds it",
    Why.BEHIND: "its program does not come to its next call, and its device does not keep it: its peers launched more",
    Why.DEVICE: "its device failed, or runs a kernel that does not end: its own log may name the error",
    Why.UNSTARTED: "its device runs a kernel that does not end",
    Why.LOST: "it died before it could dump, it is stopped, or its dump is elsewhere",
}
KINDS: Final = {Why.DEVICE: "device", Why.UNSTARTED: "device", Why.LOST: "missing"}
"""The kind of a verdict; "message" or "stuck" for the rest."""


def dump_verdicts(job: JobState) -> list[Verdict]:
    """ "mismatch", "device", "stuck", "message" and "missing", those that explain most first; "well" if none is
    true."""
    waits = Waits(job)
    mismatches = [found for key in waits.groups for found in _mismatches(waits, key)]
    blamed = culprits(waits)
    found = [verdict for _, verdict in mismatches]
    parted = {rank for _, verdict in mismatches for rank in (*verdict.absent, *verdict.waiting)}
    found += list(_blaming(waits, [one for one in blamed.values() if one.rank not in parted]))
    found += _mutual(waits, waits.behind({*blamed, *parted}))
    if not found and not waits.few:
        found.append(_well(waits))
    told = {rank for verdict in found for rank in verdict.absent}
    return [*found, *_missing(waits, told), *doubt_verdicts(job), *_without_lines(job)]


# Who is to blame ------------------------------------------------------------------------------------------------------


def _blaming(waits: Waits, blamed: Sequence[Culprit]) -> Iterator[Verdict]:
    """One verdict for culprits of one kind that ranks await in one call."""
    alike: dict[tuple[Why, int], list[Culprit]] = defaultdict(list)
    for culprit in blamed:
        alike[culprit.why, id(culprit.wait)].append(culprit)
    behind = {id(some): waits.behind(one.rank for one in some) for some in alike.values()}
    for together in sorted(alike.values(), key=lambda some: -len(behind[id(some)])):
        yield _blame(waits, together, behind[id(together)])


def _blame(waits: Waits, together: Sequence[Culprit], behind: set[int]) -> Verdict:
    """`behind`: the ranks that wait for these, if only through others."""
    why, wait = together[0].why, together[0].wait
    ranks = tuple(one.rank for one in together)
    inside = tuple(rank for rank in sorted(wait.inside) if rank not in ranks)
    rest = sorted(behind - {*ranks, *inside})
    more = f"; {named('rank', rest)} {'wait' if len(rest) > 1 else 'waits'} because of that" if rest else ""
    kind = KINDS.get(why, "message" if wait.is_message else "stuck")
    return _verdict(waits, wait, kind, _sentence(why, wait, ranks) + more, LIKELY[why], inside, ranks)


def _sentence(why: Why, wait: Wait, ranks: tuple[int, ...]) -> str:
    call, who, have = _call_words(wait), named("rank", ranks), "has" if len(ranks) == 1 else "have"
    if why is Why.DEVICE:
        it = "it" if len(ranks) == 1 else "them"
        return f"the device of {who} does not go on: {call} ended on {named('rank', wait.ended)}, and not on {it}"
    if why is Why.UNSTARTED:
        return f"the device of {who} has not begun {call}, and nothing that was recorded keeps it"
    if why is Why.LOST:
        return f"{who} {have} left no dump, and nobody else is missing in {call}"
    if wait.is_message:
        (rank,) = wait.inside
        done = "received" if wait.call.op.startswith("send") else "sent"
        return f"{who} {have} not {done} it: rank {rank} is in {call}"
    return f"{who} {have} not arrived: {call}"


# Nobody is to blame, or nobody is known to be -------------------------------------------------------------------------


def _mutual(waits: Waits, explained: set[int]) -> list[Verdict]:
    """Ranks that wait for nobody but each other."""
    found, told = list[Verdict](), set(explained)
    for wait in waits.all:
        heads = {rank for rank, call in wait.inside.items() if waits.is_head(rank, call)}
        if heads == wait.inside.keys() and not wait.awaited and not wait.lost and not heads & told:
            found.append(_unended(waits, wait))
            told |= waits.behind(heads)
    for rank in sorted(waits.head_of.keys() - told):
        circle = [] if rank in told else _circle(waits, rank, told)
        if circle:
            found.append(_circle_verdict(waits, circle))
            told |= waits.behind(circle)
    return found


def _unended(waits: Waits, wait: Wait) -> Verdict:
    inside = tuple(sorted(wait.inside))
    all_of_them = "both have" if len(inside) == 2 else "all have"
    said = f"{_call_words(wait)} had not ended on {named('rank', inside)}, although {all_of_them} launched it"
    rest = sorted(waits.behind(inside) - set(inside))
    more = f"; {named('rank', rest)} {'wait' if len(rest) > 1 else 'waits'} for them" if rest else ""
    why = "the network between them, or a kernel on one of their devices; or they dumped while it ran"
    return _verdict(waits, wait, "message" if wait.is_message else "stuck", said + more, why, inside, ())


def _circle(waits: Waits, rank: int, told: set[int]) -> list[int]:
    """Follow whom each waits for until one comes again; nothing where that leads to a rank that cannot be told."""
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        wait = waits.head_of.get(rank)
        after = [other for other in (wait.awaited if wait else ()) if other not in told and other != rank]
        if not after:
            return []
        rank = after[0]
    return path[path.index(rank) :]


def _circle_verdict(waits: Waits, ranks: Sequence[int]) -> Verdict:
    wait, after = waits.head_of[ranks[0]], (*ranks[1:], ranks[0])
    steps = [
        f"rank {rank} is in {_call_words(waits.head_of[rank])} and waits for rank {other}"
        for rank, other in zip(ranks, after, strict=True)
    ]
    said = f"{named('rank', sorted(ranks))} wait for each other: {'; '.join(steps)}"
    likely = "they launch the calls of different groups in different order"
    return _verdict(waits, wait, "stuck", said, likely, tuple(sorted(ranks)), ())


# Other verdicts -------------------------------------------------------------------------------------------------------


def _mismatches(waits: Waits, key: GroupKey) -> Iterator[tuple[GroupKey, Verdict]]:
    """Of calls that did not end: else ranks may give what differs, as it seems."""
    shown = _comparable(waits, key)
    label = next((on_rank.own.label for on_rank in shown), "")
    found = mismatch_verdict(waits.job, _title(key, label), shown)
    if found is not None and any(
        call.turn == found.turn and not call.done for on_rank in shown for call in on_rank.own.calls
    ):
        yield key, replace(found, group=key[0], where=_where(waits, found.absent), age_ns=None)


def _comparable(waits: Waits, key: GroupKey) -> list[GroupOnRank]:
    """The collectives of each rank of a group, up to the last that two of them have launched. A damaged number may lie
    anywhere, so that only calls near that one are compared."""
    calls = {rank: _collectives(group) for rank, group in waits.groups[key].items()}
    counts = Counter(turn for mine in calls.values() for turn in mine)
    last = max((turn for turn, count in counts.items() if count > 1), default=-1)
    return [
        GroupOnRank(
            waits.states[rank], replace(group, calls=tuple(calls[rank][turn] for turn in _near(calls[rank], last)))
        )
        for rank, group in waits.groups[key].items()
    ]


def _near(turns: Iterable[int], last: int) -> list[int]:
    return sorted(turn for turn in turns if last - COMPARED < turn <= last)


def _collectives(group: GroupState) -> dict[int, LastCall]:
    """By turn."""
    return {call.turn: call for call in group.calls if not family_of(call.op).is_message}


def _missing(waits: Waits, told: set[int]) -> Iterator[Verdict]:
    job = waits.job
    ranks = tuple(sorted(set(range(job.world_size or 0)) - waits.states.keys() - job.doubts.keys() - told))
    if ranks:
        said = f"no dump of {named('rank', ranks)} is here; {job.world_size} ranks took part"
        if waits.few:
            said += ": put the dumps of all ranks into one folder, since so few do not tell who is to blame"
        yield Verdict("missing", said, absent=ranks, where=(NO_DUMP,) * len(ranks))


def _without_lines(job: JobState) -> Iterator[Verdict]:
    calls = [call for state in job.ranks for group in state.groups for call in group.calls]
    if calls and not any(call.site for call in calls):
        yield Verdict("doubt", NO_LINES)


def _well(waits: Waits) -> Verdict:
    return Verdict("well", f"{named('rank', waits.states)} had no collective that has not ended when they dumped")


def _verdict(
    waits: Waits, wait: Wait, kind: str, said: str, likely: str, waiting: tuple[int, ...], absent: tuple[int, ...]
) -> Verdict:
    call = wait.call
    where = _where(waits, absent)
    return Verdict(kind, said, likely, wait.key[0], wait.turn, op_words(call.op), call.nbytes, waiting, absent, where)


# Where a rank is ------------------------------------------------------------------------------------------------------


def dumped_place(state: RankState) -> RankPlace:
    """The call that a rank waits in; else the last one that ended."""
    calls = [(group, call) for group in state.groups for call in group.calls]
    group, call = min(
        (one for one in calls if one[1] is state.pending),
        default=max(calls, key=lambda one: one[1].seq, default=(None, None)),
        key=lambda one: one[1].seq,
    )
    if group is None or call is None:
        doing, site, through = "in no collective", None, None
    else:
        words = call_words(call, _title((group.name, group.ranks), group.label))
        doing, site, through = f"{'after' if call.done else 'in'} {words}", call.site, call.through
    return RankPlace(state.rank, "", 0, DUMPED, None, None, doing, site, None, None, through, None)


def _where(waits: Waits, ranks: Iterable[int]) -> tuple[str, ...]:
    return tuple(_where_one(waits, rank) for rank in ranks)


def _where_one(waits: Waits, rank: int) -> str:
    if rank in waits.states:
        return place_words(dumped_place(waits.states[rank]))
    return UNREAD if rank in waits.job.doubts else NO_DUMP


def _call_words(wait: Wait) -> str:
    return call_words(wait.call, _title(wait.key, wait.label))


def _title(key: GroupKey, label: str) -> str:
    return f"{key[0]} ({label})" if label and label != key[0] else key[0]
