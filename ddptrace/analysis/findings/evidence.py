"""What the numbers rest on, where that is less than it could be: not measured, let go or not recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from ddptrace.analysis.rank_facts import KeptFacts, RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import PAUSED_MAX_RATIO
from ddptrace.analysis.wording import HowTo, ms, named
from ddptrace.findings import (
    APPROXIMATE_OVERLAP,
    COARSE_COMPUTE,
    DEVICE_UNSEEN,
    PROFILED_STEPS_DIFFER,
    RECORDS_LET_GO,
    STEPS_NOT_RECORDED,
    UNKNOWN_EXEC,
    Finding,
    Severity,
)
from ddptrace.schema import Evidence

UNLIKE_MIN_RATIO: Final = 0.1
"""By so much of their length profiled steps may differ from the others before that is said."""
UNKNOWN_MAX_RATIO: Final = 0.05
"""So many collectives may be unknown before that is worth a warning: DDP itself sends a few small ones at its start."""
COARSE: Final = "so compute is taken from the phases, whatever ran inside them"
UNSEEN: Final = (
    "and these ranks compute on a device, where the host only launches, so that nothing tells when they computed and"
    " communicated, and what of it was hidden"
)
"""What follows where no step was profiled."""
UNCOUNTED: Final = (
    " No update ends these steps, and in a program that has an optimizer the schedule does not count backwards: call"
    " t.step() at the end of each iteration."
)


def evidence_findings(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool) -> Iterator[Finding]:
    """`asked`: for profiler windows, when the run was traced."""
    comms = sum(rank.comms for rank in ranks)
    if result.steps and not any(row.is_seen for row in result.steps):
        yield DEVICE_UNSEEN("run", _why_unprofiled(ranks, result, how, asked, UNSEEN))
        return
    if result.steps and (comms or asked) and not any(row.profiled for row in result.steps):
        yield COARSE_COMPUTE("run", _why_unprofiled(ranks, result, how, asked, COARSE))
    missed = _why_unseen(ranks, asked)
    yield from _approximate(ranks, missed or f"{how.profile} to see when they ran")
    yield from _unknown(ranks, missed, how)
    yield from _under_the_profiler(result)


def _approximate(ranks: Sequence[RankFacts], advice: str) -> Iterator[Finding]:
    comms = sum(rank.comms for rank in ranks)
    ended, bounded = (sum(rank.by_evidence.get(one, 0) for rank in ranks) for one in (Evidence.CALLBACK, Evidence.HOST))
    told = [(ended, "only the end was measured, the begin inferred")] if ended else []
    told += [(bounded, "only the launch and the end of the host's wait are known")] if bounded else []
    if told:
        of = "; ".join(f"of {count} {what}" if len(told) > 1 else what for count, what in told)
        yield APPROXIMATE_OVERLAP(
            "run",
            f"{ended + bounded} of {comms} collectives were not seen running ({of}), so their overlap is approximate:"
            f" {advice}.",
        )


def _under_the_profiler(result: Result) -> Iterator[Finding]:
    """The typical step is one under the profiler where there is any: whether the others are like it."""
    steady = [row for row in result.steps if row.step > 0 and row.paused_ns <= PAUSED_MAX_RATIO * row.wall_ns]
    under, others = ([row.wall_ns for row in steady if row.profiled is one] for one in (True, False))
    if not under or not others or not median(others):
        return
    ratio = median(under) / median(others)
    if abs(ratio - 1) > UNLIKE_MIN_RATIO:
        yield PROFILED_STEPS_DIFFER(
            "run",
            f"Steps under the profiler took {ratio:.1f} times as long as the others (median {ms(median(under))} of"
            f" {len(under)} rank-steps, {ms(median(others))} of {len(others)}): the typical step is one of the former.",
        )


def _why_unprofiled(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool, so: str) -> str:
    """Why no step was profiled, what follows from it, and what to do."""
    if any(rank.on_device and rank.windows and not rank.device_windows for rank in ranks):
        return f"No profiler window saw the device, {so}: give the profiler ProfilerActivity.CUDA, too."
    if any(rank.windows and rank.recorded for rank in ranks):
        return f"No step lies whole in a profiler window, {so}: let the schedule's active steps be two or more."
    if asked:
        steps, ended_by = max(row.steps for row in result.ranks), {row.ended_by for row in result.steps}
        return (
            f"The schedule given as profile= came to no whole window in {steps} steps, {so}: shorten its wait and"
            f" warmup, or train for more steps.{UNCOUNTED if ended_by == {'backward'} else ''}"
        )
    return f"No step was profiled, {so}: {how.profile} to measure it."


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
        severity: Severity = "warning" if missed is None and count > UNKNOWN_MAX_RATIO * comms else "info"
        yield UNKNOWN_EXEC(
            "run",
            f"{count} of {comms} collectives (most of them {op}{where}) left nothing that tells when they ran, so they"
            f" are missing from communication and overlap: {missed or f'{how.profile} to see them'}.",
            severity,
        )


# Records that were let go, steps that were not recorded ---------------------------------------------------------------


def kept_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    yield from _let_go([rank for rank in ranks if rank.kept.let_go])
    yield from _sampled([rank for rank in ranks if rank.kept.sampled])


def _let_go(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        alike[_steps_left(rank.kept)].append(rank.rank)
    of = "; ".join(f"{_records_of(same)} {what}" for what, same in list(alike.items())[:2]) + " …" * (len(alike) > 2)
    yield RECORDS_LET_GO(
        named("rank", [rank.rank for rank in ranks]),
        "The oldest records were let go, a whole file at a time, to stay within what ddptrace.Keep allows a rank:"
        f" {of}. Give keep=ddptrace.Keep(nbytes=...) more, and steps= where you gave it, to see further back.",
    )


def _records_of(ranks: Sequence[int]) -> str:
    return f"of rank {ranks[0]}'s" if len(ranks) == 1 else f"on {named('rank', ranks)} of"


def _steps_left(kept: KeptFacts) -> str:
    if kept.last_step is None:
        return f"records {kept.let_go} are gone"
    recorded = ", as far as they were recorded" if kept.sampled else ""
    since = "none is whole" if kept.since is None else f"those from step {kept.since} on are here{recorded}"
    others = kept.whole - (0 if kept.since is None else kept.last_step + 1 - kept.since)
    return f"{kept.last_step + 1} steps {since}" + (f", and {others} before" if others > 0 and not kept.sampled else "")


def _sampled(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    first, kept = ranks[0].rank, ranks[0].kept
    yield STEPS_NOT_RECORDED(
        named("rank", [rank.rank for rank in ranks]),
        f"Not every step was recorded, as ddptrace.Keep(every=...) has it: of rank {first}'s {_steps_made(kept)} steps"
        f" {kept.whole} are here, and {kept.partial} left only when they began and ended{_length_words(kept)}.",
    )


def _steps_made(kept: KeptFacts) -> int:
    """Steps that the rank made, also those of which nothing is left."""
    return kept.whole + kept.partial if kept.last_step is None else kept.last_step + 1


def _length_words(kept: KeptFacts) -> str:
    if kept.whole_ns is None or kept.partial_ns is None:
        return ""
    return f" (median length: {ms(kept.whole_ns)} recorded, {ms(kept.partial_ns)} not)"
