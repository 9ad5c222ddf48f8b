"""What the numbers mean, in sentences: what was seen, what they rest on, what to look at next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ddptrace.analysis.advice import bucket_findings
from ddptrace.analysis.device_findings import device_findings
from ddptrace.analysis.facts import RankFacts
from ddptrace.analysis.peer_findings import peer_findings
from ddptrace.analysis.summary import PAUSED_MAX_RATIO, summarize
from ddptrace.analysis.tables import Result
from ddptrace.analysis.wording import FOREIGN, OURS, HowTo, ms, named
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

UNKNOWN_MAX_RATIO = 0.05
"""So many collectives may be unknown before that is worth a warning: DDP itself sends a few small ones at its start."""


def findings(ranks: Sequence[RankFacts], result: Result, refused: Sequence[Finding]) -> list[Finding]:
    """What analysis has to say, from what spoils the numbers to what they say. `refused`: of matching."""
    how = OURS if all(rank.recorded for rank in ranks) else FOREIGN
    return [
        *_deaths(ranks),
        *_communication(ranks, result, how),
        *_steps(ranks, how),
        *_evidence(ranks, result, how),
        *_unknown(ranks, how),
        *_unmatched(ranks),
        *_pauses(result),
        *refused,
        *_layouts(ranks),
        *device_findings(ranks, result),
        *peer_findings(result),
        *bucket_findings(summarize(result), ranks, comparable=result.recorded or len(result.matches) > 0),
    ]


def _deaths(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for rank in ranks:
        if rank.clean:
            continue
        name = f"rank {rank.rank}"
        whole = "no step of it was finished" if rank.last_step is None else f"its last whole step is {rank.last_step}"
        yield Finding("process-died", "error", name, (
            f"{name} (pid {rank.pid} on {rank.host}) did not end its trace: it died or still runs; {whole},"
            " and what it did after that is incomplete."
        ))  # fmt: skip


def _communication(ranks: Sequence[RankFacts], result: Result, how: HowTo) -> Iterator[Finding]:
    if not any(rank.comms for rank in ranks) and not result.rpcs:
        yield Finding("no-communication", "warning", "run", (
            f"No collective was recorded on any rank, so there is no communication to judge: {how.communicate}."
        ))  # fmt: skip
    if result.world_size is None and len(ranks) == 1 and not ranks[0].recorded:
        yield Finding("single-rank", "info", "run", (
            "One rank's file is all there is, and it does not say how many took part: give those of the other ranks too"
            " to see who waits for whom."
        ))  # fmt: skip
    elif (result.world_size if result.world_size is not None else len(ranks)) == 1:
        yield Finding("single-rank", "info", "run", (
            "Only one rank took part, so nothing waits for another: start several with torchrun to see communication."
        ))  # fmt: skip


def _steps(ranks: Sequence[RankFacts], how: HowTo) -> Iterator[Finding]:
    without = [rank.rank for rank in ranks if rank.last_step is None]
    if without:
        yield Finding("no-steps", "warning", named("rank", without), (
            f"No step was found on {named('rank', without)}, so its time cannot be broken down:"
            f" {how.mark_steps}."
        ))  # fmt: skip
    by_backward = [rank.rank for rank in ranks if "backward" in rank.ended_by]
    if by_backward:
        yield Finding("steps-by-backward", "info", named("rank", by_backward), (
            f"No optimizer was seen on {named('rank', by_backward)}, so each backward counts as one step:"
            f" {how.mark_steps}."
        ))  # fmt: skip


def _evidence(ranks: Sequence[RankFacts], result: Result, how: HowTo) -> Iterator[Finding]:
    """What the numbers rest on, where it is less than it could be."""
    comms = sum(rank.comms for rank in ranks)
    if result.steps and comms and not any(row.profiled for row in result.steps):
        yield Finding("coarse-compute", "info", "run", (
            "No step was profiled, so compute is taken from the phases, whatever ran inside them:"
            f" {how.profile} to measure it."
        ))  # fmt: skip
    guessed = sum(rank.by_evidence.get(one, 0) for rank in ranks for one in (Evidence.CALLBACK, Evidence.HOST))
    if guessed:
        yield Finding("approximate-overlap", "info", "run", (
            f"{guessed} of {comms} collectives had only their end measured and their begin inferred, so their"
            f" overlap is approximate: {how.profile} to see when they ran."
        ))  # fmt: skip


def _unknown(ranks: Sequence[RankFacts], how: HowTo) -> Iterator[Finding]:
    comms = sum(rank.comms for rank in ranks)
    ops: Counter[str] = Counter()
    for rank in ranks:
        ops.update(rank.unknown_ops)
    if ops:
        count, (op, _) = ops.total(), ops.most_common(1)[0]
        severity = "warning" if count > UNKNOWN_MAX_RATIO * comms else "info"
        yield Finding("unknown-exec", severity, "run", (
            f"{count} of {comms} collectives (most of them {op}) left nothing that tells when they ran: they are"
            f" missing from communication and overlap; {how.profile} to see them."
        ))  # fmt: skip


def _unmatched(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    lost = [(rank.rank, rank.unmatched) for rank in ranks if rank.unmatched]
    if lost:
        yield Finding("bucket-layout-unknown", "warning", named("rank", [rank for rank, _ in lost]), (
            f"In {sum(count for _, count in lost)} backward passes the reducer's communication fits no known bucket"
            " layout, so it counts as collectives, without names of parameters."
        ))  # fmt: skip


def _pauses(result: Result) -> Iterator[Finding]:
    held = [row for row in result.steps if row.paused_ns > PAUSED_MAX_RATIO * row.wall_ns]
    if held:
        steps = sorted({row.step for row in held})
        longest = max(row.paused_ns for row in held)
        yield Finding("paused-steps", "info", named("step", steps), (
            f"ddptrace itself held the training thread in {named('step', steps)}, for up to {ms(longest)} on one rank"
            " (starting, stopping or saving the profiler): do not judge the program by these steps."
        ))  # fmt: skip


def _layouts(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    told = set()
    for reducer in (reducer for rank in ranks for reducer in rank.reducers):
        if len(reducer.layouts) > 1 and reducer.reducer not in told:
            told.add(reducer.reducer)
            sizes = " then ".join(str(buckets) for buckets, _ in reducer.layouts)
            yield Finding("layout-rebuilt", "info", f"reducer {reducer.reducer}", (
                f"{reducer.kind} of {reducer.module} rebuilt its buckets in the order in which gradients become ready"
                f" ({sizes} buckets, the last from backward {reducer.layouts[-1][1]} on): compare buckets of"
                " one layout only."
            ))  # fmt: skip
