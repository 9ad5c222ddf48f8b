"""What the numbers mean, in sentences: what happened, what the numbers are based on, what to look at next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from ddptrace.analysis.findings.advice import bucket_findings
from ddptrace.analysis.findings.buckets import (
    bucket_cap_findings,
    buffer_findings,
    heavy_layer_findings,
    layout_words,
    one_by_one_findings,
    unused_findings,
)
from ddptrace.analysis.findings.collectives import queue_findings, slow_message_findings
from ddptrace.analysis.findings.desync import desync_findings, refused_findings
from ddptrace.analysis.findings.device import comm_kernel_findings, device_findings
from ddptrace.analysis.findings.evidence import (
    FOREIGN,
    NOT_FITTED,
    OURS,
    HowTo,
    clock_findings,
    evidence_findings,
    kept_findings,
)
from ddptrace.analysis.findings.parallelism import expert_findings, pipeline_findings, tensor_findings, unit_findings
from ddptrace.analysis.findings.ranks import blame_findings, early_finding, peer_findings, uneven_findings
from ddptrace.analysis.findings.steps import contention_findings, data_findings, jitter_findings, window_findings
from ddptrace.analysis.findings.traffic import message_findings, rpc_findings, serving, traffic_findings
from ddptrace.analysis.findings.waiting import waiting_findings
from ddptrace.analysis.matching.matches import Refused
from ddptrace.analysis.rank_tables import Failure, RankFacts
from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import PAUSED_MAX_RATIO, Summary, steady_steps
from ddptrace.findings import (
    BUCKET_LAYOUT_UNKNOWN,
    COLLECTIVE_FAILED,
    LAYOUT_REBUILT,
    NO_COMMUNICATION,
    NO_STEPS,
    OPTIMIZERS_IN_TURN,
    PAUSED_STEPS,
    PROCESS_DIED,
    SINGLE_RANK,
    STEPS_BY_BACKWARD,
    Finding,
    without_silenced,
)
from ddptrace.units import counted, duration, named


def run_findings(
    ranks: Sequence[RankFacts],
    result: Result,
    summary: Summary,
    *,
    loading: Sequence[Finding],
    refused: Sequence[Refused],
    blame: Blame,
    profile_asked: bool = False,
) -> list[Finding]:
    """Write all findings of a run, from what spoils the numbers to what they say.

    `loading`: what was found while the run was read. `refused`: groups that matching refused. `profile_asked`: profiler
    windows were asked for when the run was traced.
    """
    comparable = _is_comparable(result, blame)
    how = OURS if all(rank.recorded for rank in ranks) else FOREIGN
    return without_silenced(
        [
            *of_several_files(loading),
            *_deaths(ranks),
            *failure_findings(ranks),
            *kept_findings(ranks),
            *_communication(ranks, result, how),
            *_steps(ranks, serving(ranks, result), {row.rank for row in result.windows}, how),
            *_in_turn([rank for rank in ranks if rank.in_turn], how),
            *evidence_findings(ranks, result, how, profile_asked),
            *_unmatched(ranks),
            *_pauses(result),
            *refused_findings(refused),
            *desync_findings(ranks, result.desyncs),
            *_layouts(ranks),
            *device_findings(ranks, result),
            *comm_kernel_findings(ranks),
            *peer_findings(result),
            *rpc_findings(ranks, result),
            *_causes(ranks, result, summary),
            *bucket_findings(summary, result, ranks, comparable=comparable, late_known=blame.early is not None),
            *window_findings(result),
            *traffic_findings(result.gradient_traffic),
            *message_findings(result),
            *clock_findings(result.clocks),
            *blame_findings(blame, hosts=len({row.host for row in result.ranks})),
            *([early_finding(blame.early, summary)] if blame.early is not None and comparable else []),
            *uneven_findings(result, summary, blame),
            *pipeline_findings(result),
            *expert_findings(result, summary),
            *tensor_findings(result, summary),
            *jitter_findings(ranks, result, crowded=blame.crowding is not None),
        ]
    )


def _is_comparable(result: Result, blame: Blame) -> bool:
    """Whether the ranks are known to have done the same steps together, by clocks that fit."""
    fit = blame.is_comparable and not any(row.why == NOT_FITTED for row in result.clocks)
    return fit and (result.recorded or len(result.matches) > 0)


def _causes(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Causes of lost time, each with its cost."""
    reducers = [reducer for rank in ranks for reducer in rank.reducers]
    yield from bucket_cap_findings(reducers)
    yield from unused_findings(ranks, result)
    yield from buffer_findings(ranks, result, summary)
    yield from data_findings(summary, result)
    yield from contention_findings(result)
    yield from slow_message_findings(summary, result)
    yield from queue_findings(ranks, result, summary)
    yield from one_by_one_findings(summary, result)
    yield from waiting_findings(result, summary)
    yield from heavy_layer_findings(summary, reducers, sum(suspect.cost_ns for suspect in result.suspects))
    yield from unit_findings(ranks, result, summary)


def _deaths(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for rank in ranks:
        if rank.clean:
            continue
        name = f"rank {rank.rank}"
        whole = "it finished no step" if rank.last_step is None else f"its last whole step is {rank.last_step}"
        yield PROCESS_DIED(
            name,
            f"Rank {rank.rank} (pid {rank.pid} on {rank.host}) did not end its trace: it died or still runs; {whole},"
            " and the records after that are incomplete.",
        )


def _communication(ranks: Sequence[RankFacts], result: Result, how: HowTo) -> Iterator[Finding]:
    silent, on_device = not any(rank.comms for rank in ranks), any(row.gpu_events for row in result.ranks)
    is_one_file = result.world_size is None and len(ranks) == 1 and not ranks[0].recorded
    is_alone = result.world_size == 1
    if silent and on_device and is_one_file:
        yield _seems_alone()
        return
    if silent and on_device and not is_alone and not result.rpcs and all(rank.recorded for rank in ranks):
        yield NO_COMMUNICATION(
            "run",
            f"{counted(len(ranks), 'rank')} took part, and none recorded a collective: each seems to train alone. If"
            " they should train one model, wrap it in DistributedDataParallel; if kernels communicate that ddptrace"
            " does not know, name them with --comm-kernel.",
        )
    elif silent and on_device and not is_alone:
        yield NO_COMMUNICATION(
            "run",
            "No kernel is known to communicate. If the devices work together, name their kernels of communication with"
            " --comm-kernel.",
            "info",
        )
    elif silent and not on_device and not result.rpcs and not (is_alone and result.recorded):
        yield NO_COMMUNICATION(
            "run",
            f"No rank recorded a collective, so there is no communication to judge: {how.communicate}.",
        )
    if is_one_file:
        yield SINGLE_RANK(
            "run",
            "There is only one rank's file, and it does not say how many ranks took part: add the files of the other"
            " ranks to see which rank waits for which.",
        )
    elif (result.world_size if result.world_size is not None else len(ranks)) == 1:
        several = ": start several with torchrun to see communication" if result.recorded else ""
        yield SINGLE_RANK("run", f"Only one rank took part, so it waits for no other{several}.")


def _seems_alone() -> Finding:
    return NO_COMMUNICATION(
        "run",
        "No kernel is known to communicate, and the file does not say how many ranks took part: this device seems to"
        " have worked alone. If it did not, add the files of the other ranks, and name their kernels of communication"
        " with --comm-kernel.",
        "info",
    )


def _steps(ranks: Sequence[RankFacts], remote_only: Set[int], windowed: Set[int], how: HowTo) -> Iterator[Finding]:
    """`windowed`: ranks whose profiler windows are broken down whole."""
    stepless = [rank for rank in ranks if rank.last_step is None and rank.rank not in remote_only]
    early = [rank.rank for rank in stepless if not rank.clean and rank.rank not in windowed]
    if early:
        yield NO_STEPS(
            named("rank", early),
            f"No step has ended yet in the records of {named('rank', early)}, so its time cannot be broken down: if the"
            f" program is still in its first step, analyze it again later; if not, {how.mark_steps}.",
        )
    without = [rank.rank for rank in stepless if rank.rank not in early]
    if without:
        is_whole = windowed >= set(without)
        so = "only whole profiler windows are broken down" if is_whole else "its time cannot be broken down"
        yield NO_STEPS(
            named("rank", without),
            f"No step was found on {named('rank', without)}, so {so}: {how.mark_steps}.",
        )
    by_backward = [rank.rank for rank in ranks if "backward" in rank.ended_by]
    if by_backward:
        remote = all(rank.remote_calls for rank in ranks if rank.rank in by_backward)
        updates = ", whose updates may be remote calls" if remote else ""
        yield STEPS_BY_BACKWARD(
            named("rank", by_backward),
            f"No optimizer was seen on {named('rank', by_backward)}{updates}, so each backward counts as one step:"
            f" {how.mark_steps}{' if that is wrong' if remote else ''}.",
        )


def _in_turn(ranks: Sequence[RankFacts], how: HowTo) -> Iterator[Finding]:
    if ranks:
        where, names = named("rank", [rank.rank for rank in ranks]), Counter(ranks[0].in_turn)
        told = "; ".join(name if count == 1 else f"{count} times {name}" for name, count in names.items())
        yield OPTIMIZERS_IN_TURN(
            where,
            f"{names.total()} optimizers take turns on {where}, each with a forward before its update ({told}). Each"
            f" update counts as a step, so an iteration is several steps: {how.mark_steps} to count it as one.",
        )


def _unmatched(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    lost = [(rank.rank, rank.unmatched) for rank in ranks if rank.unmatched]
    if lost:
        yield BUCKET_LAYOUT_UNKNOWN(
            named("rank", [rank for rank, _ in lost]),
            f"In {sum(count for _, count in lost)} backward passes the reducer's communication fits no known bucket"
            " layout, so it counts as collectives without names of parameters.",
        )


def _pauses(result: Result) -> Iterator[Finding]:
    held = [row for row in result.steps if row.paused_ns > PAUSED_MAX_RATIO * row.wall_ns]
    if held:
        steps = sorted({row.step for row in held})
        longest = max(row.paused_ns for row in held)
        yield PAUSED_STEPS(
            named("step", steps),
            f"ddptrace itself held the training thread for up to {duration(longest)} in {named('step', steps)}, to"
            f" start, stop or save the profiler: {_paused_so(result, len(steps))}.",
        )


def _paused_so(result: Result, steps: int) -> str:
    one = steps == 1
    if steady_steps(result.steps):
        return f"the typical step leaves {'it' if one else 'them'} out"
    return f"do not judge the program by {'this step' if one else 'these steps'}"


def _layouts(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    told = set()
    for reducer in (reducer for rank in ranks for reducer in rank.reducers):
        if len(reducer.layouts) > 1 and reducer.reducer not in told:
            told.add(reducer.reducer)
            yield LAYOUT_REBUILT(
                f"reducer {reducer.reducer}",
                f"{reducer.kind} of {reducer.module} rebuilt its buckets in the order in which gradients become ready:"
                f" {layout_words(reducer)} (the last layout from backward {reducer.layouts[-1][1]} on). Compare only"
                " buckets of the same layout.",
            )


def failure_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """The first failure of each rank: later ones mostly have the same reason."""
    for rank in (rank for rank in ranks if rank.failures):
        first, rest = rank.failures[0], len(rank.failures) - 1
        more = f" ({rest} more failed after it)" if rest else ""
        yield COLLECTIVE_FAILED(
            f"rank {rank.rank}",
            f"{first.op.rstrip('_')} number {first.ordinal} of group {first.group} failed on rank"
            f" {rank.rank}{_failed_in(first)}: {first.error.rstrip('.')}{more}.",
        )


def _failed_in(failure: Failure) -> str:
    if failure.step is not None:
        return f" in step {failure.step}"
    return "" if failure.after is None else f" after step {failure.after}"


OF_FILE: Final = re.compile(r"rank (\d+), .+")
COUNT: Final = re.compile(r"(\d+) ")
"""What a message begins with that counts something in its file."""


def of_several_files(findings: Sequence[Finding]) -> list[Finding]:
    """Join findings about files of different ranks that differ in nothing but a count at their begin: it becomes a
    range. Each stands where the first of them stood."""
    alike: dict[tuple[str, str, str], list[tuple[int | None, Finding]]] = {}
    for position, finding in enumerate(findings):
        match = OF_FILE.fullmatch(finding.where)
        rank = int(match[1]) if match else None
        own = "" if match else str(position)  # alone, and not joined
        alike.setdefault((finding.code, finding.severity, own + COUNT.sub("# ", finding.message, 1)), []).append(
            (rank, finding)
        )
    return [_sentence(_joined(group)) for group in alike.values()]


def _sentence(finding: Finding) -> Finding:
    """Begin with a capital letter, unless a name begins the message."""
    first = finding.message.partition(" ")[0]
    return (
        replace(finding, message=first.capitalize() + finding.message[len(first) :])
        if first.isalpha() and first.islower()
        else finding
    )


def _joined(group: Sequence[tuple[int | None, Finding]]) -> Finding:
    ranks = sorted({rank for rank, _ in group if rank is not None})
    first = group[0][1]
    if len(ranks) < 2:
        return first
    where = named("rank", ranks)
    counts = [int(match[1]) for _, finding in group if (match := COUNT.match(finding.message))]
    low, high = min(counts, default=0), max(counts, default=0)
    told = first.message if low == high else COUNT.sub(f"{low} to {high} ", first.message, 1)
    return replace(first, where=where, message=f"on each of {where}, {told}")
