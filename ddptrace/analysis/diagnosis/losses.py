"""Ranks that are no more: died, failed, or ended with the whole job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from typing import Final

from ddptrace.analysis.diagnosis.places import place_of, place_words, seconds, status_of
from ddptrace.analysis.diagnosis.tables import Verdict
from ddptrace.load.diagnosis.tables import BEAT_NS, BEATS, JobState, RankState
from ddptrace.units import duration, named

OF_A_PEER: Final = re.compile(
    r"connection (was )?(closed|reset|refused)|by peer|broken pipe|remote process exited|timed? ?out|KeyboardInterrupt"
    r"|SystemExit|SignalException",
    re.IGNORECASE,
)
"""What ranks fail with since another one is gone, or since somebody ended them."""
SOONER_NS: Final = 10 * 10**6
"""Ranks that end at once have their last records closer than this, as a rule."""
TOGETHER_NS: Final = BEATS * BEAT_NS


def loss_verdicts(job: JobState, awaited: Set[int] = frozenset()) -> Iterator[Verdict]:
    """ "failed", "died", "failed-after", "killed", "left" and "held", each of all ranks that it is true of. `awaited`:
    those that others wait for."""
    status = {rank.rank: status_of(rank, job.now_at_ns) for rank in job.ranks}
    dead = [rank for rank in job.ranks if status[rank.rank] == "died" and rank.failure is None]
    failed = sorted(
        (rank for rank in job.ranks if rank.failure is not None), key=lambda one: (one.failed_at_ns or 0, one.rank)
    )
    first = [rank for rank in failed if not OF_A_PEER.search(rank.failure or "")]
    after = [rank for rank in failed if rank not in first]
    runs = any(word in ("runs", "stopped", "held") for word in status.values())
    alone = [rank for rank in dead if runs or (after and not first) or _long_before(rank, job)]
    alone = [rank for rank in alone if rank.rank in awaited] or alone
    if first:
        yield _failed(job, "failed", first)
    if alone:
        yield _died(job, alone)
    if after:
        yield _failed(job, "failed-after", after)
    if len(alone) < len(dead):
        yield _killed(job, [rank for rank in dead if rank not in alone], after=bool(alone or failed))
    held = [rank for rank in job.ranks if status[rank.rank] in ("stopped", "held")]
    if held:
        yield _held(job, held)
    left = [rank for rank in job.ranks if status[rank.rank] == "unknown"]
    if left and not runs:
        yield _left(job, left)


def _looked_at_ns(job: JobState) -> int:
    """Also once the job is over, where its last word was said on this machine: of a process elsewhere nothing tells
    that it is gone, and clocks differ."""
    last = max(job.ranks, key=lambda one: one.beat_at_ns)
    over = not any(rank.alive for rank in job.ranks) and last.alive is False
    return job.now_at_ns + (job.silent_ns if over else 0)


def _long_before(rank: RankState, job: JobState) -> bool:
    """Before the others, and so by itself."""
    return rank.beat_at_ns < max(other.beat_at_ns for other in job.ranks) - TOGETHER_NS


def _failed(job: JobState, kind: str, failed: Sequence[RankState]) -> Verdict:
    rank, rest = failed[0], [one.rank for one in failed[1:]]
    more = f"; then {named('rank', rest)}" if rest else ""
    said = f"rank {rank.rank} failed{_in_step(rank)}: {rank.failure}{more}"
    return Verdict(kind, said, absent=_ranks(failed), where=_where(job, failed), age_ns=_age(job, rank.failed_at_ns))


def _died(job: JobState, dead: Sequence[RankState]) -> Verdict:
    ago_ns = _looked_at_ns(job) - min(rank.beat_at_ns for rank in dead)
    ranks, step, its = named("rank", _ranks(dead)), _in_step(dead[0]), "its" if len(dead) == 1 else "their"
    said = f"{ranks} died{step} without a word: killed, crashed, or {its} machine is gone, {seconds(ago_ns)} ago"
    return Verdict("died", said, absent=_ranks(dead), where=_where(job, dead), age_ns=ago_ns)


def _killed(job: JobState, dead: Sequence[RankState], *, after: bool) -> Verdict:
    """`after`: others were lost before."""
    how = "too, and without a word" if after else "at once and without a word"
    why = "as a rule the launcher ends the rest" if after else "killed from outside, or crashed"
    ago_ns = _looked_at_ns(job) - max(rank.beat_at_ns for rank in dead)
    said = f"{named('rank', _ranks(dead))} ended {how}: {why}, {seconds(ago_ns)} ago{'' if after else _sooner(dead)}"
    return Verdict("killed", said, absent=_ranks(dead), where=_where(job, dead), age_ns=ago_ns)


def _sooner(dead: Sequence[RankState]) -> str:
    """Where one had stopped training while the others went on: of one machine's clock, which proves no more."""
    first, *others = sorted(dead, key=lambda one: one.last_at_ns)
    lead_ns = min((rank.last_at_ns for rank in others), default=first.last_at_ns) - first.last_at_ns
    if lead_ns < SOONER_NS or len({rank.host for rank in dead}) > 1:
        return ""
    return (
        f"; rank {first.rank} had recorded nothing of its training for {duration(lead_ns)} when the others still did,"
        " so it may have been the first"
    )


def _held(job: JobState, held: Sequence[RankState]) -> Verdict:
    since_ns = job.now_at_ns - max(rank.beat_at_ns for rank in held)
    verb = "is" if len(held) == 1 else "are"
    said = f"{named('rank', _ranks(held))} {verb} there and recorded nothing for {seconds(since_ns)}, not even the time"
    return Verdict("held", said, absent=_ranks(held), where=_where(job, held), age_ns=since_ns)


def _left(job: JobState, left: Sequence[RankState]) -> Verdict:
    said = (
        f"nobody has written here for {seconds(job.silent_ns)}, and {named('rank', _ranks(left))} never said that they"
        " ended: the job was killed, or this is a copy from while it ran"
    )
    return Verdict("left", said, absent=_ranks(left), where=_where(job, left), age_ns=job.silent_ns)


def _in_step(rank: RankState) -> str:
    return "" if rank.step is None else f" in step {rank.step}"


def _ranks(states: Sequence[RankState]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in states)


def _where(job: JobState, states: Sequence[RankState]) -> tuple[str, ...]:
    return tuple(place_words(place_of(rank, job.now_at_ns)) for rank in states)


def _age(job: JobState, at_ns: int | None) -> int | None:
    return None if at_ns is None else _looked_at_ns(job) - at_ns
