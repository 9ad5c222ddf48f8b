"""What a job that hangs, crashed or was killed was doing: from the last of every rank to a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ddptrace.analysis.diagnosis_tables import Diagnosis, RankPlace, Verdict
from ddptrace.analysis.hangs import hang_verdicts, idle_verdict
from ddptrace.analysis.losses import loss_verdicts
from ddptrace.analysis.places import place_of
from ddptrace.analysis.wording import named
from ddptrace.load.tables import JobState

ORDER: Final = (
    "mismatch", "failed", "died", "stuck", "message", "held", "failed-after", "killed", "left", "slow", "ended", "well",
)  # fmt: skip
LOST: Final = ("failed", "died", "failed-after", "killed", "left")
HANGING: Final = ("mismatch", "stuck", "message", "held")
EXPLAINS: Final = ("failed", "died", "held")
"""Ranks of these do not come, and that is why others wait."""


def diagnose(job: JobState) -> Diagnosis:
    places = tuple(place_of(one, job.now_at_ns) for one in job.ranks)
    found = _one_story(list(loss_verdicts(job)), hang_verdicts(job))
    if not any(one.kind in (*LOST, *HANGING) for one in found):
        idle = idle_verdict(job)
        found += [idle] if idle is not None else [] if found else [_well(places)]
    verdicts = tuple(sorted(found, key=lambda one: (ORDER.index(one.kind), _is_a_link(one, found))))
    return Diagnosis(verdicts, places, _exit_code({one.kind for one in verdicts}))


def _exit_code(kinds: set[str]) -> int:
    return 4 if kinds & set(LOST) else 3 if kinds & set(HANGING) else 0


def _one_story(losses: list[Verdict], hangs: Sequence[Verdict]) -> list[Verdict]:
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
                losses[k] = _joined(loss, hang)
                break
        else:
            rest.append(hang)
    return losses + rest


def _joined(loss: Verdict, hang: Verdict) -> Verdict:
    if loss.turn is not None:  # of another group
        return loss
    verb = "waits" if len(hang.waiting) == 1 else "wait"
    said = f"{loss.sentence}; {named('rank', hang.waiting)} {verb} in {hang.op} #{hang.turn} of group {hang.group}"
    return replace(
        loss, sentence=said, likely=loss.likely or hang.likely, group=hang.group, turn=hang.turn, op=hang.op,
        nbytes=hang.nbytes, waiting=hang.waiting, age_ns=hang.age_ns,
    )  # fmt: skip


def _is_a_link(one: Verdict, found: Sequence[Verdict]) -> bool:
    """Whether those that have not come wait themselves, for somebody else."""
    return any(other is not one and set(one.absent) & set(other.waiting) for other in found)


def _well(places: Sequence[RankPlace]) -> Verdict:
    ranks = tuple(place.rank for place in places)
    if all(place.status == "ended" for place in places):
        return Verdict("ended", f"{named('rank', ranks)} ended as they should" if ranks else "no rank is here")
    steps = sorted({place.step for place in places if place.step is not None})
    at = "" if not steps else f", in step {steps[0]}" if len(steps) == 1 else f", in steps {steps[0]} to {steps[-1]}"
    return Verdict("well", f"{named('rank', ranks)} go on{at}")
