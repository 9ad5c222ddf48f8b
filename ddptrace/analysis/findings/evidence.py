"""Tells where numbers rest on less than they could: no profiler window, removed records, clocks that disagree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Final

from ddptrace.analysis.rank_tables import KeptFacts, RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import (
    UNLIKE_MIN_RATIO,
    lengths_of,
    measured_steps,
    steady_steps,
    typical_steps,
    uncut_steps,
)
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.findings import (
    APPROXIMATE_OVERLAP,
    CLOCK_BENT,
    CLOCK_BY_PAIRS,
    CLOCK_DISAGREES,
    CLOCK_NOT_FITTED,
    COARSE_COMPUTE,
    COLLECTIVES_MISSING,
    DEVICE_CAUGHT_UP,
    DEVICE_SHARED,
    DEVICE_UNSEEN,
    DEVICE_UNTIMED,
    PROFILED_STEPS_DIFFER,
    RECORDS_LET_GO,
    STEPS_NOT_RECORDED,
    UNKNOWN_EXEC,
    Finding,
    Severity,
)
from ddptrace.schema import Evidence
from ddptrace.units import duration, named, percent

LONGER_MIN_RATIO: Final = 0.1
"""Of the others' length. If profiled steps are longer by more, there is a finding: the profiler may slow them."""
UNKNOWN_MAX_RATIO: Final = 0.05
"""Of all collectives. If more are unknown, it is a warning: DDP itself sends a few small ones at its start."""
COARSE: Final = "so compute is the length of the phases without waits, whatever ran inside them"
BY_EVENTS: Final = "so only events tell when the device computed"
DRY_MIN_RATIO: Final = 0.1
"""Of the ends of phases. If the device had run dry at fewer, its gaps matter little."""
UNSEEN: Final = (
    "and these ranks compute on a device, which the host only launches work on, so it is unknown when they computed and"
    " communicated, and what was hidden"
)
"""What follows if no step was profiled."""
UNCOUNTED: Final = (
    " A backward ends these steps, not an update; if a program has an optimizer, the schedule does not count backwards."
    " Call t.step() at the end of each iteration."
)


@dataclass(frozen=True, slots=True)
class HowTo:
    """Ends of sentences."""

    communicate: str
    mark_steps: str
    profile: str


OURS: Final = HowTo(
    "trace the training loop after torch.distributed.init_process_group()",
    "call t.step() at the end of each iteration",
    "trace with profile=...",
)
FOREIGN: Final = HowTo(
    "record whole steps of a distributed run, with ProfilerActivity.CUDA where it uses NCCL",
    "call prof.step() at the end of each iteration while recording",
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
)
"""For files of torch.profiler that were recorded without ddptrace."""


def evidence_findings(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool) -> Iterator[Finding]:
    """`asked`: profiler windows were asked for when the run was traced."""
    comms = sum(rank.comms for rank in ranks)
    yield from _shared(ranks, result)
    yield from _unrecorded(ranks, result, how)
    if result.steps and not any(row.is_seen for row in result.steps):
        if not any(rank.unrecorded for rank in ranks):
            yield DEVICE_UNSEEN("run", _why_unprofiled(ranks, result, how, asked, UNSEEN))
        return
    if result.steps and (comms or asked) and not any(row.profiled for row in result.steps):
        by_phase = any(row.is_by_phase for row in result.steps)
        if by_phase or asked:
            yield COARSE_COMPUTE("run", _why_unprofiled(ranks, result, how, asked, COARSE if by_phase else BY_EVENTS))
    if any(row.is_seen and not row.profiled for row in result.steps):
        yield from _caught_up(ranks, result, how)
    yield from _untimed(ranks)
    missed = _why_unseen(ranks, asked)
    yield from _approximate(ranks, missed or f"{how.profile} to see when they ran")
    yield from _unknown(ranks, missed, how)
    yield from _under_the_profiler(result)


def _shared(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    """Where ranks compute on the same device, as events and profilers both see it."""
    left_open = _left_open(result)
    unseen = f" Events do not show when: {left_open}." if left_open else ""
    for sharing in sorted({rank.device_ranks for rank in ranks if rank.device_ranks}):
        where = named("rank", sharing)
        yield DEVICE_SHARED(
            where,
            f"One device computes for {where}, for one after another: a rank that has work may wait for its turn, and a"
            f" kernel that is interrupted seems to take longer.{unseen}",
        )


def _unrecorded(ranks: Sequence[RankFacts], result: Result, how: HowTo) -> Iterator[Finding]:
    lacking = [rank for rank in ranks if rank.unrecorded]
    if lacking:
        where = named("rank", [rank.rank for rank in lacking])
        steps = sorted({step for rank in lacking for step in rank.unrecorded})
        is_shown = any(row.is_seen for row in result.steps)
        advice = f": {how.profile} to see kernels that communicate" if lacking[0].on_device and not is_shown else ""
        yield COLLECTIVES_MISSING(
            where,
            f"Collectives of {where} were not recorded, so the parts of {named('step', steps)} are unknown{advice}.",
            "info" if is_shown else "warning",
        )


def _caught_up(ranks: Sequence[RankFacts], result: Result, how: HowTo) -> Iterator[Finding]:
    """Where only events tell of a device, and it often waited for the host."""
    told, left_open = [rank.caught_up for rank in ranks if rank.caught_up is not None], _left_open(result)
    ends, dry = sum(one.ends for one in told), sum(one.dry for one in told)
    if ends and dry >= DRY_MIN_RATIO * ends and left_open:
        yield DEVICE_CAUGHT_UP(
            "run",
            f"The device waited for the host: at {dry} of {ends} ends of forward, backward and update it had nothing"
            f" left to do. Events do not show for how long it waited: {left_open}. What of that lies in a phase is"
            f" counted as compute, the rest as idle time: {how.profile} to measure them.",
        )


def _left_open(result: Result) -> str:
    """Return how much of the typical step events leave open, in words; nothing where they do not tell of it."""
    rows = [row for row in measured_steps(result.steps)[0] if row.unsure_ns is not None]
    unsure_ns, whole_ns = sum(row.unsure_ns or 0 for row in rows), sum(row.window_ns for row in rows)
    if not whole_ns:
        return ""
    share = f"{duration(unsure_ns / len(rows))} of the typical step ({percent(unsure_ns / whole_ns)})"
    return f"in {share} it computed or waited"


def _untimed(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Steps that events would tell of, had some not been left out."""
    lacking = [rank for rank in ranks if rank.untimed]
    if lacking:
        where = named("rank", [rank.rank for rank in lacking])
        steps = sorted({step for rank in lacking for step in rank.untimed})
        yield DEVICE_UNTIMED(
            where,
            f"When {where} computed in {named('step', steps)} is unknown: a CUDA graph was captured there, or too"
            " many events of the device were under way. If a graph holds a whole step, ddptrace sees no step where it"
            " is replayed: call t.step() after each replay.",
        )


def _approximate(ranks: Sequence[RankFacts], advice: str) -> Iterator[Finding]:
    comms = sum(rank.comms for rank in ranks)
    ended, bounded = (sum(rank.by_evidence.get(one, 0) for rank in ranks) for one in (Evidence.CALLBACK, Evidence.HOST))
    ended += sum(rank.inferred_events for rank in ranks)
    told = [(ended, "only the end was measured, and the begin inferred")] if ended else []
    told += [(bounded, "only the launch and the end of the host's wait are known")] if bounded else []
    by_nccl = any(rank.inferred_events and any("nccl" in one for one in rank.backends) for rank in ranks)
    timing = " With TORCH_NCCL_ENABLE_TIMING=1, NCCL tells how long each takes." if by_nccl else ""
    if told:
        of = "; ".join(f"of {count} {what}" if len(told) > 1 else what for count, what in told)
        yield APPROXIMATE_OVERLAP(
            "run",
            f"No profiler saw {ended + bounded} of {comms} collectives run ({of}), so their overlap is approximate:"
            f" {advice}.{timing}",
        )


def _under_the_profiler(result: Result) -> Iterator[Finding]:
    """Say how profiled steps compare with the others, and which of them show how the typical step divides."""
    steady = steady_steps(result.steps)
    profiled, without = ([row for row in steady if row.profiled is one] for one in (True, False))
    under, others = lengths_of(uncut_steps(profiled), without)
    if not under or not others or not median(others):
        return
    ratio = median(under) / median(others)
    if not 1 - UNLIKE_MIN_RATIO <= ratio <= 1 + LONGER_MIN_RATIO:
        yield PROFILED_STEPS_DIFFER(
            "run",
            f"Steps under the profiler took {ratio:.1f} times as long as the others (median"
            f" {duration(median(under))} of {len(under)} rank-steps, against {duration(median(others))} of"
            f" {len(others)}). {_profiled_so(result)}.",
        )


def _profiled_so(result: Result) -> str:
    """What the profiled steps are good for."""
    if all(row.profiled for row in typical_steps(result.steps)[0]):
        return "The typical step is made of them alone, and so says little of a step without the profiler"
    if all(row.profiled for row in measured_steps(result.steps)[0]):
        return "They show how the typical step divides, but not how long it takes"
    return "They do not show how the typical step divides"


def _why_unprofiled(ranks: Sequence[RankFacts], result: Result, how: HowTo, asked: bool, so: str) -> str:
    """Why no step was profiled, what follows from it, and what to do."""
    if any(rank.on_device and rank.windows and not rank.device_windows for rank in ranks):
        return (
            f"No profiler window saw the device, {so}: give the profiler the activity of the device"
            " (ProfilerActivity.CUDA for a CUDA device)."
        )
    if any(rank.windows and rank.recorded for rank in ranks):
        return f"No profiler window covers a whole step, {so}: give the schedule two or more active steps."
    if asked:
        steps, ended_by = max(row.steps for row in result.ranks), {row.ended_by for row in result.steps}
        return (
            f"The schedule in profile= completed no window in {steps} steps, {so}: shorten its wait and warmup, or"
            f" train for more steps.{UNCOUNTED if ended_by == {'backward'} else ''}"
        )
    return f"No step was profiled, {so}: {how.profile} to measure it."


def _why_unseen(ranks: Sequence[RankFacts], asked: bool) -> str | None:
    """Why no profiler saw them run, although windows were asked for; None if none were."""
    if not any(rank.windows for rank in ranks):
        return "the schedule in profile= completed no window" if asked else None
    if any(rank.on_device and rank.windows and not rank.device_windows for rank in ranks):
        return "no profiler window saw the device"
    if not all(rank.windows and rank.recorded for rank in ranks):
        return None
    seen = sum(rank.by_evidence.get(one, 0) for rank in ranks for one in (Evidence.DEVICE, Evidence.BACKEND))
    if sum(rank.outside_windows for rank in ranks) < sum(rank.comms for rank in ranks) - seen:
        return None
    return "they ran outside of the profiler's windows, and those in profiled steps are measured"


def _unknown(ranks: Sequence[RankFacts], missed: str | None, how: HowTo) -> Iterator[Finding]:
    comms = sum(rank.comms for rank in ranks)
    ops: Counter[str] = Counter()
    sites: Counter[str] = Counter()
    for rank in ranks:
        ops.update(rank.unknown_ops)
        sites.update(rank.unknown_sites)
    if ops:
        count, (op, most) = ops.total(), ops.most_common(1)[0]
        kind = op if most == count else f"most of them {op}"
        where = "".join(f", at {site}" for site, times in sites.most_common(1) if 2 * times > count)
        severity: Severity = "warning" if missed is None and count > UNKNOWN_MAX_RATIO * comms else "info"
        yield UNKNOWN_EXEC(
            "run",
            f"It is unknown when {count} of {comms} collectives ({kind}{where}) ran, so they are missing"
            f" from communication and overlap: {missed or f'{how.profile} to see them'}.",
            severity,
        )


# Records that were removed, steps that were not recorded --------------------------------------------------------------


def kept_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    yield from _let_go([rank for rank in ranks if rank.kept.let_go])
    yield from _sampled([rank for rank in ranks if rank.kept.sampled])


def _let_go(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        alike[_steps_left(rank.kept)].append(rank.rank)
    of = "; ".join(f"{named('rank', same)} {what}" for what, same in list(alike.items())[:2]) + " …" * (len(alike) > 2)
    yield RECORDS_LET_GO(
        named("rank", [rank.rank for rank in ranks]),
        "The oldest records were removed, a whole file at a time, to stay within the limit of ddptrace.Keep for a rank:"
        f" {of}. Raise nbytes= of ddptrace.Keep, and steps= if you gave it, to keep more.",
    )


def _steps_left(kept: KeptFacts) -> str:
    """As in "kept steps 12 to 19 of 20"."""
    if kept.last_step is None:
        return f"lost {kept.let_go} records"
    steps = kept.last_step + 1
    if kept.since is None:
        kept_steps, others = f"no whole step of {steps}", kept.whole
    else:
        kept_steps, others = f"steps {kept.since} to {kept.last_step} of {steps}", kept.whole - (steps - kept.since)
    if kept.sampled:
        return f"kept {kept_steps}" + (", as far as they were recorded" if kept.since is not None else "")
    return f"kept {kept_steps}" + (f", and {others} earlier" if others > 0 else "")


def _sampled(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if not ranks:
        return
    first, kept = ranks[0].rank, ranks[0].kept
    yield STEPS_NOT_RECORDED(
        named("rank", [rank.rank for rank in ranks]),
        f"ddptrace.Keep(every=...) records only some steps: of the {_steps_made(kept)} steps of rank {first},"
        f" {kept.whole} were recorded, and {kept.partial} only with their begin and end{_length_words(kept)}.",
    )


def _steps_made(kept: KeptFacts) -> int:
    """Steps that the rank made, including those of which nothing is left."""
    return kept.whole + kept.partial if kept.last_step is None else kept.last_step + 1


def _length_words(kept: KeptFacts) -> str:
    if kept.whole_ns is None or kept.partial_ns is None:
        return ""
    return f" (median length: {duration(kept.whole_ns)} recorded, {duration(kept.partial_ns)} not)"


# Clocks that disagree, or cannot be compared --------------------------------------------------------------------------


NOT_FITTED: Final = "not fitted"


def clock_findings(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """First clocks that should be the same, then clocks that cannot be compared."""
    yield from _disagreeing([row for row in clocks if row.why == "disagrees"])
    yield from _not_fitted([row for row in clocks if row.why == NOT_FITTED])
    yield from _by_pairs([row for row in clocks if row.why == "clock pairs" and not row.shifted])
    yield from _bent(clocks)


def _disagreeing(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks, worst = _ranks(rows), max(abs(row.offset_ns) for row in rows)
        whose = "its" if len(ranks) == 1 else "their"
        yield CLOCK_DISAGREES(
            named("rank", ranks),
            f"{named('Rank', ranks)} ran on the same machine as others, but collectives prove that"
            f" {whose} clock differs by up to {duration(worst)}. Times were shifted to the clock of rank"
            f" {rows[0].reference}; --no-align shows them as recorded.",
        )


def _not_fitted(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_NOT_FITTED(
            named("rank", ranks),
            f"No clock with a constant rate explains when {named('rank', ranks)} took part in collectives with rank"
            f" {rows[0].reference}, so times are compared as recorded. Either the matched collectives do not belong"
            " together, or a clock was set during the run.",
        )


def _by_pairs(rows: Sequence[ClockRow]) -> Iterator[Finding]:
    if rows:
        ranks = _ranks(rows)
        yield CLOCK_BY_PAIRS(
            named("rank", ranks),
            f"No collective shows how far the clocks of {named('rank', ranks)} and rank {rows[0].reference} are apart,"
            " so only their wall clocks are compared, which may differ by milliseconds.",
        )


def _bent(clocks: Sequence[ClockRow]) -> Iterator[Finding]:
    """A clock that is fitted in several pieces changed its rate."""
    fitted = [row for row in clocks if row.why in ("fitted", "disagrees")]
    pieces = {rank: [row for row in fitted if row.rank == rank] for rank in _ranks(fitted)}
    bent = {rank: rows for rank, rows in pieces.items() if len(rows) > 1}
    if bent:
        most = max(map(len, bent.values()))
        yield CLOCK_BENT(
            named("rank", bent),
            f"The clock of {named('rank', bent)} changed its rate against that of rank {fitted[0].reference}: it was"
            f" fitted in up to {most} pieces.",
        )


def _ranks(rows: Sequence[ClockRow]) -> list[int]:
    return sorted(set(map(attrgetter("rank"), rows)))
