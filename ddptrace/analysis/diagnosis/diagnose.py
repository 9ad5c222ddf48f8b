"""What a job that hangs, crashed or was killed was doing: from the last of every rank to a few sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from ddptrace.analysis.diagnosis.hangs import hang_verdicts, idle_verdict, patience_ns
from ddptrace.analysis.diagnosis.losses import loss_verdicts
from ddptrace.analysis.diagnosis.places import NO_FOLDER, place_of, seconds
from ddptrace.analysis.diagnosis.tables import Diagnosis, RankPlace, Verdict
from ddptrace.load.diagnosis.tables import JobState
from ddptrace.units import named

ORDER: Final = (
    "mismatch", "failed", "died", "stuck", "message", "held", "failed-after", "killed", "missing", "left", "ended",
    "well", "slow", "unseen", "doubt", "clock",
)  # fmt: skip
LOST: Final = ("failed", "died", "failed-after", "killed", "missing", "left")
HANGING: Final = ("mismatch", "stuck", "message", "held")
EXPLAINS: Final = ("failed", "died", "held")
"""Ranks of these do not come, and that is why others wait."""


def diagnose(job: JobState) -> Diagnosis:
    places = tuple(place_of(one, job.now_at_ns) for one in job.ranks)
    hangs = hang_verdicts(job)
    awaited = {rank for verdict in hangs if verdict.kind != "mismatch" for rank in verdict.absent}
    found = _one_story(job, list(loss_verdicts(job, awaited)), hangs)
    missing = _missing(job, {rank for verdict in found if verdict.kind != "slow" for rank in verdict.absent})
    if not any(verdict.kind in (*LOST, *HANGING) for verdict in found):
        idle = idle_verdict(job)
        found.append(idle or _well(job, places, anyone_waits=bool(found)))
    found += [*missing, *_doubts(job), *_clocks(job)]
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
        return Verdict("ended", f"{named('rank', ranks)} ended{_as_should(job)}" if ranks else "no rank is here")
    waits = f"; none has waited for longer than {seconds(patience_ns(job))} yet" if anyone_waits else ""
    return Verdict("well", f"{_named_verb(going, 'go on', 'goes on')}{_steps(job, going)}{waits}")


def _as_should(job: JobState) -> str:
    """What is not here, or may be another run's, ended nobody knows how."""
    return "" if job.foreign or _absent_folders(job) else " as they should"


def _missing(job: JobState, told: Set[int]) -> list[Verdict]:
    """Ranks of which nothing is here, and that nobody is said to wait for. While others go on, they may just be
    starting, or write elsewhere: then nothing is known to be wrong."""
    ranks = tuple(rank for rank in _absent_folders(job) if rank not in told)
    if not ranks:
        return []
    kind = "unseen" if any(one.alive and not one.closed for one in job.ranks) else "missing"
    said = f"nothing is here of {named('rank', ranks)}, of {job.world_size} that took part"
    return [Verdict(kind, said, absent=ranks, where=(NO_FOLDER,) * len(ranks))]


def _absent_folders(job: JobState) -> list[int]:
    return sorted(set(range(job.world_size or 0)) - {rank.rank for rank in job.ranks})


def _doubts(job: JobState) -> Iterator[Verdict]:
    """Why what is said of a rank may be none of this run."""
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, doubts in job.doubts.items():
        for finding in doubts:
            alike[finding.message].append(rank)
    yield from (Verdict("doubt", f"{named('rank', ranks)}: {message}") for message, ranks in alike.items())


def _clocks(job: JobState) -> Iterator[Verdict]:
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, ahead_ns in job.apart_ns.items():
        alike[f"{seconds(abs(ahead_ns))} {'ahead' if ahead_ns > 0 else 'behind'}"].append(rank)
    for words, ranks in alike.items():
        of = f"clock of {named('rank', ranks)} is" if len(ranks) == 1 else f"clocks of {named('rank', ranks)} are"
        yield Verdict("clock", f"the {of} about {words}, and what is said here is without that")


def _steps(job: JobState, going: Sequence[RankPlace]) -> str:
    if all(rank.step_ns is None for rank in job.ranks):
        return ", and none has ended a step yet: as a rule the job is starting"
    steps = sorted({place.step for place in going if place.step is not None})
    return "" if not steps else f", in step {steps[0]}" if len(steps) == 1 else f", in steps {steps[0]} to {steps[-1]}"


def _named_verb(places: Sequence[RankPlace], several: str, one: str) -> str:
    return f"{named('rank', [place.rank for place in places])} {several if len(places) > 1 else one}"
