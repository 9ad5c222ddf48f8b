"""What a job that hangs, crashed or was killed was doing: the last records of every rank, in a few sentences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from ddptrace.analysis.diagnosis.dumps import dump_verdicts, dumped_place
from ddptrace.analysis.diagnosis.hangs import hang_verdicts, idle_verdict, patience_ns
from ddptrace.analysis.diagnosis.places import NO_FOLDER, doubt_verdicts, place_of, place_words, seconds, status_of
from ddptrace.analysis.diagnosis.tables import Diagnosis, RankPlace, Verdict
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
ORDER: Final = (
    "mismatch", "failed", "died", "device", "stuck", "message", "held", "failed-after", "killed", "missing", "left",
    "ended", "well", "slow", "unseen", "doubt", "clock",
)  # fmt: skip
LOST: Final = ("failed", "died", "device", "failed-after", "killed", "missing", "left")
HANGING: Final = ("mismatch", "stuck", "message", "held")
EXPLAINS: Final = ("failed", "died", "held")
"""Ranks of these do not come, and that is why others wait."""


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
    why = f"killed, crashed, or {its} machine is gone"
    said = f"{ranks} died{step} without reporting an error: {why}, {seconds(ago_ns)} ago"
    return Verdict("died", said, absent=_ranks(dead), where=_where(job, dead), age_ns=ago_ns)


def _killed(job: JobState, dead: Sequence[RankState], *, after: bool) -> Verdict:
    """`after`: others were lost before."""
    how = "too, without reporting an error" if after else "at once, without reporting an error"
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
        f"; rank {first.rank} stopped recording its training {duration(lead_ns)} before the others, so it may have"
        " failed first"
    )


def _held(job: JobState, held: Sequence[RankState]) -> Verdict:
    since_ns = job.now_at_ns - max(rank.beat_at_ns for rank in held)
    verb = "is" if len(held) == 1 else "are"
    said = f"{named('rank', _ranks(held))} {verb} alive and recorded nothing for {seconds(since_ns)}, not even the time"
    return Verdict("held", said, absent=_ranks(held), where=_where(job, held), age_ns=since_ns)


def _left(job: JobState, left: Sequence[RankState]) -> Verdict:
    said = (
        f"no rank has written here for {seconds(job.silent_ns)}, and {named('rank', _ranks(left))} did not record an"
        " end: the job was killed, or this is a copy that was made while it ran"
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


def diagnose(job: JobState, dumps: JobState | None = None) -> Diagnosis:
    """`job`: of a run directory, or of dumps. `dumps`: those that lie beside the records of a run; they add who is to
    blame where the records do not say it."""
    if job.dumped:
        return _of_dumps(job)
    found = _of_records(job)
    return found if dumps is None else _with_dumps(found, _of_dumps(dumps))


def _of_dumps(job: JobState) -> Diagnosis:
    verdicts = tuple(dump_verdicts(job))
    return Diagnosis(verdicts, tuple(map(dumped_place, job.ranks)), _exit_code({one.kind for one in verdicts}))


def _with_dumps(found: Diagnosis, dumped: Diagnosis) -> Diagnosis:
    told = {rank for verdict in found.verdicts for rank in verdict.absent}
    more = tuple(
        replace(verdict, sentence=f"the dumps of its Flight Recorder tell that {verdict.sentence}")
        for verdict in dumped.verdicts
        if verdict.kind in (*LOST, *HANGING) and verdict.group and not told & {*verdict.absent}
    )
    verdicts = sorted((*found.verdicts, *more), key=lambda one: ORDER.index(one.kind))
    return Diagnosis(tuple(verdicts), found.ranks, _exit_code({one.kind for one in verdicts}))


def _of_records(job: JobState) -> Diagnosis:
    places = tuple(place_of(one, job.now_at_ns) for one in job.ranks)
    hangs = hang_verdicts(job)
    awaited = {rank for verdict in hangs if verdict.kind != "mismatch" for rank in verdict.absent}
    found = _one_story(job, list(loss_verdicts(job, awaited)), hangs)
    missing = _missing(job, {rank for verdict in found if verdict.kind != "slow" for rank in verdict.absent})
    if not any(verdict.kind in (*LOST, *HANGING) for verdict in found):
        idle = idle_verdict(job)
        found.append(idle or _well(job, places, anyone_waits=bool(found)))
    found += [*missing, *doubt_verdicts(job), *_clocks(job)]
    verdicts = tuple(sorted(found, key=lambda one: (ORDER.index(one.kind), _is_a_link(one, found))))
    return Diagnosis(verdicts, places, _exit_code({verdict.kind for verdict in verdicts}))


def _exit_code(kinds: set[str]) -> int:
    return 4 if kinds & set(LOST) else 3 if kinds & set(HANGING) else 0


def _one_story(job: JobState, losses: list[Verdict], hangs: Sequence[Verdict]) -> list[Verdict]:
    """Who waits for a rank that is lost is told with it."""
    rest = []
    for hang in hangs:
        for k, loss in enumerate(losses):
            if (
                loss.kind in EXPLAINS
                and hang.absent
                and set(hang.absent) <= set(loss.absent)
                and hang.kind != "mismatch"
            ):
                losses[k] = _joined(job, loss, hang)
                break
        else:
            rest.append(hang)
    return losses + rest


def _joined(job: JobState, loss: Verdict, hang: Verdict) -> Verdict:
    if loss.turn is not None:  # of another group
        return loss
    verb = _waits(job, hang.waiting)
    likely = hang.likely if loss.kind == "held" else ""  # of one that is gone nothing does not return
    said = f"{loss.sentence}; {named('rank', hang.waiting)} {verb} in {hang.op} #{hang.turn} of group {hang.group}"
    return replace(
        loss,
        sentence=said,
        likely=likely,
        group=hang.group,
        turn=hang.turn,
        op=hang.op,
        nbytes=hang.nbytes,
        waiting=hang.waiting,
        age_ns=hang.age_ns,
    )


def _waits(job: JobState, ranks: Sequence[int]) -> str:
    """Of those that are lost themselves it is over."""
    if all(rank.closed or rank.alive is False for rank in job.ranks if rank.rank in ranks):
        return "waited"
    return "waits" if len(ranks) == 1 else "wait"


def _is_a_link(verdict: Verdict, found: Sequence[Verdict]) -> bool:
    """Whether those that have not come wait themselves, for somebody else."""
    return any(other is not verdict and set(verdict.absent) & set(other.waiting) for other in found)


def _well(job: JobState, places: Sequence[RankPlace], *, anyone_waits: bool) -> Verdict:
    going = [place for place in places if place.status != "ended"]
    if not going:
        ranks = tuple(place.rank for place in places)
        return Verdict(
            "ended", f"{named('rank', ranks)} ended{_as_should(job)}" if ranks else "no rank has records here"
        )
    waits = f"; none has waited for longer than {seconds(patience_ns(job))} yet" if anyone_waits else ""
    return Verdict("well", f"{_named_verb(going, 'go on', 'goes on')}{_steps(job, going)}{waits}")


def _as_should(job: JobState) -> str:
    """Nothing tells how a rank ended that has no records here, or perhaps those of another run."""
    return "" if job.foreign or _absent_folders(job) else " as they should"


def _missing(job: JobState, told: Set[int]) -> list[Verdict]:
    """Ranks of which nothing is here, and that nobody is said to wait for. While others go on, they may just be
    starting, or write elsewhere: then nothing is known to be wrong."""
    ranks = tuple(rank for rank in _absent_folders(job) if rank not in told)
    if not ranks:
        return []
    kind = "unseen" if any(one.alive and not one.closed for one in job.ranks) else "missing"
    said = f"no records of {named('rank', ranks)} are here; {job.world_size} ranks took part"
    return [Verdict(kind, said, absent=ranks, where=(NO_FOLDER,) * len(ranks))]


def _absent_folders(job: JobState) -> list[int]:
    return sorted(set(range(job.world_size or 0)) - {rank.rank for rank in job.ranks})


def _clocks(job: JobState) -> Iterator[Verdict]:
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, ahead_ns in job.apart_ns.items():
        alike[f"{seconds(abs(ahead_ns))} {'ahead' if ahead_ns > 0 else 'behind'}"].append(rank)
    for words, ranks in alike.items():
        of = f"clock of {named('rank', ranks)} is" if len(ranks) == 1 else f"clocks of {named('rank', ranks)} are"
        yield Verdict("clock", f"the {of} about {words}; the times here are corrected for that")


def _steps(job: JobState, going: Sequence[RankPlace]) -> str:
    if all(rank.step_ns is None for rank in job.ranks):
        return ", and none has ended a step yet: as a rule the job is starting"
    steps = sorted({place.step for place in going if place.step is not None})
    return "" if not steps else f", in step {steps[0]}" if len(steps) == 1 else f", in steps {steps[0]} to {steps[-1]}"


def _named_verb(places: Sequence[RankPlace], several: str, one: str) -> str:
    return f"{named('rank', [place.rank for place in places])} {several if len(places) > 1 else one}"
