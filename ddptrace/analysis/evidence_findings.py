"""What the numbers rest on, where it is less than it could be, and what would make it more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.facts import RankFacts
from ddptrace.analysis.tables import Result
from ddptrace.analysis.wording import HowTo
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

UNKNOWN_MAX_RATIO: Final = 0.05
"""So many collectives may be unknown before that is worth a warning: DDP itself sends a few small ones at its start."""


def evidence_findings(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool) -> Iterator[Finding]:
    """`asked`: for profiler windows, when the run was traced."""
    comms = sum(rank.comms for rank in ranks)
    if result.steps and comms and not any(row.profiled for row in result.steps):
        yield Finding("coarse-compute", "info", "run", _coarse(ranks, result, how, asked))
    missed = _why_unseen(ranks, asked)
    guessed = sum(rank.by_evidence.get(one, 0) for rank in ranks for one in (Evidence.CALLBACK, Evidence.HOST))
    if guessed:
        advice = missed or f"{how.profile} to see when they ran"
        yield Finding("approximate-overlap", "info", "run", (
            f"{guessed} of {comms} collectives had only their end measured and their begin inferred, so their"
            f" overlap is approximate: {advice}."
        ))  # fmt: skip
    yield from _unknown(ranks, missed, how)


def _coarse(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool) -> str:
    """Why no step was profiled."""
    coarse = "so compute is taken from the phases, whatever ran inside them"
    if any(rank.windows and rank.recorded for rank in ranks):
        return f"No step lies whole in a profiler window, {coarse}: let the schedule's active steps be two or more."
    if asked:
        steps = max(row.steps for row in result.ranks)
        return (
            f"The schedule given as profile= came to no whole window in {steps} steps, {coarse}: shorten its wait and"
            " warmup, or train for more steps."
        )
    return f"No step was profiled, {coarse}: {how.profile} to measure it."


def _why_unseen(ranks: Sequence[RankFacts], asked: bool) -> str | None:
    """Why no profiler saw what none saw, where to profile was not forgotten."""
    if not any(rank.windows for rank in ranks):
        return "the schedule given as profile= came to no whole window" if asked else None
    if not all(rank.windows and rank.recorded for rank in ranks):
        return None
    seen = sum(rank.by_evidence.get(one, 0) for rank in ranks for one in (Evidence.DEVICE, Evidence.BACKEND))
    if sum(rank.outside_windows for rank in ranks) < sum(rank.comms for rank in ranks) - seen:
        return None
    return "they ran outside the profiler's windows; those in profiled steps are measured"


def _unknown(ranks: Sequence[RankFacts], missed: str | None, how: HowTo) -> Iterator[Finding]:
    comms = sum(rank.comms for rank in ranks)
    ops: Counter[str] = Counter()
    sites: Counter[str] = Counter()
    for rank in ranks:
        ops.update(rank.unknown_ops)
        sites.update(rank.unknown_sites)
    if ops:
        count, (op, _) = ops.total(), ops.most_common(1)[0]
        where = "".join(f", at {site}" for site, times in sites.most_common(1) if 2 * times > count)
        severity = "warning" if missed is None and count > UNKNOWN_MAX_RATIO * comms else "info"
        yield Finding("unknown-exec", severity, "run", (
            f"{count} of {comms} collectives (most of them {op}{where}) left nothing that tells when they ran, so they"
            f" are missing from communication and overlap: {missed or f'{how.profile} to see them'}."
        ))  # fmt: skip
