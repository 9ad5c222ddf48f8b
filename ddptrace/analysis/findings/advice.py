"""Which bucket costs the step most, the likeliest reason, and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from ddptrace.analysis.collectives.transfers import is_in_its_bytes
from ddptrace.analysis.findings.collectives import exposed_collective
from ddptrace.analysis.findings.waiting import MeanWait, device_waits, mean_wait
from ddptrace.analysis.pipeline.digest import idle_in_pipelines_ns, pipeline_digests
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.ranks.digest import WAITING_MIN_RATIO, matched_time, waits_little
from ddptrace.analysis.ranks.suspects import MIN_STEPS
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import EXPOSED
from ddptrace.analysis.summary import WORTH_RATIO, BucketSummary, RankSummary, Summary, measured_steps
from ddptrace.findings import EXPOSED_BUCKET, LATE_RANK, WELL_HIDDEN, Finding, Severity
from ddptrace.units import duration, percent, size


def bucket_findings(
    summary: Summary, result: Result, ranks: Sequence[RankFacts], comparable: bool, late_known: bool = False
) -> Iterator[Finding]:
    """Judge the typical step. `comparable`: the ranks are known to have done the same steps together. `late_known`: it
    is known what the rank costs that was late in the few steps recorded."""
    exposed = summary.part("exposed_comm")
    if exposed is None or not summary.comm_ns:
        return
    if exposed.ratio < WORTH_RATIO:
        if result.world_size != 1 and summary.is_sure:
            yield WELL_HIDDEN(
                "run",
                f"Communication is well hidden: only {percent(exposed.ratio)} of the step waits for it"
                f" ({duration(exposed.ns)} exposed of {duration(summary.comm_ns)}, mean of {summary.steps} rank-steps)."
                " Look for time elsewhere.",
            )
        return
    sent_ns = sum(row.cost_ns for row in result.savings if row.cause == EXPOSED)
    if (result.suspects or (late_known and comparable)) and 2 * sent_ns < exposed.ns:
        return  # most of it waits for late ranks, and their own findings say what that costs
    judged = {row.step for row in result.blame}
    alike = comparable and not result.bubbles  # stages of a pipeline do not communicate alike
    late = late_rank(summary) if alike and len(judged) < MIN_STEPS and not late_known else None
    if late is not None:
        yield late
    elif (
        summary.worst is not None
        and 2 * sum(bucket.exposed_charged_ns or 0 for bucket in summary.buckets) >= exposed.ns
    ):
        yield _exposed(summary.worst, summary, next_look(summary.worst, summary, result, ranks))
    elif 2 * idle_in_pipelines_ns(pipeline_digests(result), len(result.ranks)) < exposed.ns:
        yield exposed_collective(exposed, result)


def _exposed(worst: BucketSummary, summary: Summary, look: str) -> Finding:
    where = f"reducer {worst.reducer}, layout {worst.layout}, bucket {worst.index}"
    several = len({bucket.reducer for bucket in summary.buckets}) > 1
    named = f"Bucket {worst.index}" + (f" of reducer {worst.reducer}" if several else "")
    names = worst.parameters
    holds = f" ({names[0]} to {names[-1]})" if len(names) > 1 else f" ({names[0]})" if names else ""
    severity: Severity = "warning" if (worst.step_ratio or 0) >= WORTH_RATIO else "info"
    return EXPOSED_BUCKET(
        where,
        f"{named}{holds} is the most exposed bucket: {duration(worst.exposed_charged_ns or 0)} of its communication are"
        f" exposed, {percent(worst.step_ratio or 0)} of the step. {look}",
        severity,
    )


# Why the bucket is exposed --------------------------------------------------------------------------------------------


MIB: Final = 1 << 20
PREDICTED: Final = "; `ddptrace advise` predicts whether that wins anything"


def next_look(worst: BucketSummary, summary: Summary, result: Result, ranks: Sequence[RankFacts]) -> str:
    """Sentences that say why the bucket is exposed, and what to do."""
    matched = matched_time(result)
    if matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO:
        return "Most of the communication is waiting for ranks that come late, which no bucket size shortens."
    dividing = _dividing_nbytes(worst, ranks)
    if dividing:
        return (
            "All gradients go in this one bucket, which leaves when backward is over. A bucket_cap_mb of at most"
            f" {math.floor(dividing / MIB * 1e4) / 1e4:g} makes several buckets, and the first ones can hide"
            f"{PREDICTED}."
        )
    compute = next(part.ns for part in summary.parts if part.name == "compute")
    if summary.comm_ns is not None and summary.comm_ns > compute:
        absent = _absent(worst, result)
        longer = f"The step communicates longer ({duration(summary.comm_ns)}) than it computes ({duration(compute)})"
        so = f"{longer}, so" if absent is None else f"{longer}, but {absent}. If this is not waiting,"
        return f"{so} no bucket size can hide it all: {_less_time(worst, result, ranks)}."
    if (worst.queue_ns or 0) > (worst.exposed_charged_ns or 0):
        wait = _wait_of(worst, result)
        if wait is None or not wait.is_host_ahead:
            return _queue_words(worst, wait)
    return _last_bucket(worst, result, ranks) if worst.is_last else _earlier_bucket(worst, result)


def _wait_of(worst: BucketSummary, result: Result) -> MeanWait | None:
    """Between its launch and its begin on a device in the typical steps; None where nothing tells."""
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    key = (worst.reducer, worst.layout, worst.index)
    rows = [row for row in result.collectives if row.bucket == key and (row.rank, row.step) in steps]
    return mean_wait(rows, device_waits(result))


def _queue_words(worst: BucketSummary, wait: MeanWait | None) -> str:
    if wait is not None and not wait.is_behind_others:
        return (
            f"It began {duration(wait.queue_ns)} after its launch, and other collectives ran for only"
            f" {duration(wait.others_ns)} of that: look at what the device computes, copies and idles for before it."
        )
    if wait is not None:
        return (
            f"It began {duration(wait.queue_ns)} after its launch, when those before it were over, which ran for"
            f" {duration(wait.others_ns)} of that: look at what they wait for, and for a slow rank."
        )
    return (
        f"It waited in the queue for {duration(worst.queue_ns or 0)} behind earlier buckets: look at what they wait"
        " for, and for a slow rank."
    )


def _dividing_nbytes(worst: BucketSummary, ranks: Sequence[RankFacts]) -> int:
    """The largest cap that divides a bucket of all gradients of a reducer; 0 where it holds fewer, or one parameter is
    most of it. The gradient that reaches the cap closes a bucket, so all but the last one must reach it."""
    reducers = (reducer for rank in ranks for reducer in rank.reducers if reducer.reducer == worst.reducer)
    only = (
        reducer.sizes[worst.layout][0] - reducer.last_nbytes[worst.layout][0]
        for reducer in reducers
        if worst.layout < len(reducer.sizes) and len(reducer.sizes[worst.layout]) == 1
    )
    return next(only, 0) if _largest(worst, ranks) is None else 0


def _absent(worst: BucketSummary, result: Result) -> str | None:
    """The part of a sentence that says how many ranks of the bucket's group are here; None if all are, or may be."""
    key = (worst.reducer, worst.layout, worst.index)
    sizes = {row.group: row.group_size or 0 for row in result.collectives if row.bucket == key}
    here = {name: {row.rank for row in result.collectives if row.group == name} for name in sizes}
    most = max(sizes, key=lambda name: (len(here[name]), name), default=None)  # one that is alone may be of another run
    if most is None or len(here[most]) >= sizes[most]:
        return None
    verb = "is" if len(here[most]) == 1 else "are"
    return (
        f"only {len(here[most])} of {sizes[most]} ranks {verb} compared here, and waiting for the others counts as"
        " communication: look there first"
    )


def _less_time(worst: BucketSummary, result: Result, ranks: Sequence[RankFacts]) -> str:
    """What makes communication shorter, by what it spends its time on."""
    if not is_in_its_bytes(worst, result):
        return f"{size(worst.nbytes or 0)} is small, so the time is {_latency(worst, result)}, not bandwidth"
    fewer = _fewer_bytes(result, ranks)
    return f"send fewer bytes ({fewer}) or use a faster link" if fewer else "use a faster link"


def _latency(worst: BucketSummary, result: Result) -> str:
    """What a small bucket spends its time on, with what shortens that where it is known."""
    if not waits_little(result):
        return "latency or waiting"
    several = any(row.layout == worst.layout and row.index != worst.index for row in result.buckets)
    return "latency (fewer, larger buckets have less of it)" if several else "latency"


def _fewer_bytes(result: Result, ranks: Sequence[RankFacts]) -> str:
    """Ways to send fewer bytes that the program does not use already."""
    hooked = any(rank.hooks for rank in ranks)
    accumulates = any(row.backwards > row.synchronised for row in result.gradient_traffic)
    ways = ("" if hooked else "a compressing hook", "" if accumulates else "gradient accumulation")
    return ", ".join(filter(None, ways))


def _last_bucket(worst: BucketSummary, result: Result, ranks: Sequence[RankFacts]) -> str:
    begins = "It is the last bucket of its layout and begins when backward has little left to compute"
    largest = _largest(worst, ranks)
    if largest is None:
        return f"{begins}. A smaller bucket_cap_mb makes the last bucket smaller{PREDICTED}."
    fewer = _fewer_bytes(result, ranks)
    other = f"split the parameter or send fewer bytes ({fewer})" if fewer else "split the parameter"
    return f"{begins}, and {largest}, so a smaller bucket_cap_mb does not help: {other}."


def _largest(worst: BucketSummary, ranks: Sequence[RankFacts]) -> str | None:
    """A clause about the parameter that is most of the bucket, which no cap divides; None if there is none."""
    if len(worst.parameters) == 1:
        return f"{worst.parameters[0]} is its only parameter"
    reducers = (reducer for rank in ranks for reducer in rank.reducers if reducer.reducer == worst.reducer)
    bulky = {name: nbytes for reducer in reducers for name, nbytes in reducer.bulky}
    most = (worst.nbytes or 0) / 2  # it may be bulky in the buckets of another layout alone
    name = next((name for name in worst.parameters if bulky.get(name, 0) > most), None)
    return None if name is None else f"{name} alone has {size(bulky[name])} of its {size(worst.nbytes or 0)}"


def _earlier_bucket(worst: BucketSummary, result: Result) -> str:
    key = (worst.reducer, worst.layout, worst.index)
    mine = (row for row in result.buckets if (row.reducer, row.layout, row.index) == key)
    looks = ["at when its gradients became ready"] if any(row.ready_at_ns is not None for row in mine) else []
    looks += ["for a rank that arrived late"] if len(result.ranks) > 1 else []
    if not looks:
        return "It is not the last bucket, and the compute beside it was shorter."
    return f"It is not the last bucket: look {' and '.join(looks)}."


# Which rank the others probably wait for ------------------------------------------------------------------------------


LATE_MIN_RATIO: Final = 0.05
"""Of the step. A rank that waits this much less than every other rank is called late."""
TELLING: Final = ("data", "forward", "optimizer", "other")
"""Phases that show where a late rank spends its time. In backward the others wait for it, so its own is shorter."""


def late_rank(summary: Summary) -> Finding | None:
    """Find the one rank that hardly waits while the others wait long: they wait for it, inside the collective."""
    known = [(rank.exposed_comm_ns, rank) for rank in summary.ranks if rank.exposed_comm_ns is not None]
    known.sort(key=itemgetter(0))
    if len(known) < 2 or summary.window_ns is None:
        return None
    (least_ns, least), (next_ns, _), ranks = known[0], known[1], [rank for _, rank in known]
    ahead = next_ns - least_ns
    if ahead < LATE_MIN_RATIO * summary.window_ns or 2 * least_ns > next_ns:
        return None
    others = "the other rank" if len(ranks) == 2 else "every other rank exposes at least"
    wait = f"Rank {ranks[1].rank} waits" if len(ranks) == 2 else "They wait"
    return LATE_RANK(
        f"rank {least.rank}",
        f"Rank {least.rank} is probably late: it exposes {duration(least_ns)} of communication, {others}"
        f" {duration(next_ns)}. {wait} for it inside the collectives, which counts as communication. In a step it"
        f" computes for {duration(least.compute_ns or 0)} and idles for {duration(least.idle_ns or 0)}"
        f"{_longer(least, ranks[1:], ahead) or '. Compare its phases with those of the others'} before you change"
        " buckets or the network.",
    )


def _longer(late: RankSummary, others: Sequence[RankSummary], ahead_ns: int) -> str:
    """Name the phase that explains at least half of the lateness; empty if there is none."""
    most = {name: max(_phase_ns(rank, name) for rank in others) for name in TELLING}
    name = max(TELLING, key=lambda phase: _phase_ns(late, phase) - most[phase])
    longer_ns = _phase_ns(late, name) - most[name]
    if 2 * longer_ns < ahead_ns:
        return ""
    than = "the other's" if len(others) == 1 else "any other's"
    return f", and its {name} phase is {duration(longer_ns)} longer than {than}. Look there"


def _phase_ns(rank: RankSummary, name: str) -> int:
    return next((phase.ns for phase in rank.phases if phase.name == name), 0)
