"""Which bucket costs the step most, why, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddptrace.analysis.facts import RankFacts, ReducerFacts
from ddptrace.analysis.summary import BucketSummary, Summary
from ddptrace.analysis.wording import mb, ms, percent
from ddptrace.load.tables import Finding

WELL_HIDDEN_RATIO = 0.02
"""Exposed communication below this share of the step is not worth a change."""

LATE_MIN_RATIO = 0.05
"""What the least waiting rank is ahead of the next one, as a share of the step, from which on it is called late."""
COMPRESS = "a compressing hook, gradient accumulation"


def bucket_findings(summary: Summary, ranks: Sequence[RankFacts], comparable: bool) -> Iterator[Finding]:
    """About bucket sizes, then about the typical step. `comparable`: the ranks are known to have done the same steps
    together."""
    yield from _over_cap([reducer for rank in ranks for reducer in rank.reducers])
    exposed = next((part for part in summary.parts if part.name == "exposed_comm"), None)
    if exposed is None or not summary.comm_ns:
        return
    if exposed.ratio < WELL_HIDDEN_RATIO:
        yield Finding("well-hidden", "info", "run", (
            f"Communication is well hidden: {percent(exposed.ratio)} of the step waits for it ({ms(exposed.ns)}"
            f" exposed of {ms(summary.comm_ns)}, mean of {summary.steps} rank-steps): look for time elsewhere."
        ))  # fmt: skip
        return
    late = _late_rank(summary) if comparable else None
    if late is not None:
        yield late
    elif summary.worst is not None and 2 * sum(one.exposed_charged_ns or 0 for one in summary.buckets) >= exposed.ns:
        yield _exposed(summary.worst, summary, hooks={hook for rank in ranks for hook in rank.hooks})
    else:
        yield Finding("exposed-communication", "warning", "run", (
            f"{ms(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the step, and most of"
            " it carries no gradient bucket: see the collectives with most exposed_charged_ns, and issue them with"
            " async_op=True before work that does not need them."
        ))  # fmt: skip


def _over_cap(reducers: Sequence[ReducerFacts]) -> Iterator[Finding]:
    """Parameters that alone are larger than a bucket may be; every rank has the same."""
    for reducer in {reducer.reducer: reducer for reducer in reducers if reducer.over_cap}.values():
        cap, count = reducer.bucket_cap_nbytes or 0, len(reducer.over_cap)
        name, nbytes = max(reducer.over_cap, key=lambda parameter: parameter[1])
        more = f" ({count - 1} more parameters do too)" if count > 1 else ""
        yield Finding("bucket-over-cap", "info", f"reducer {reducer.reducer}", (
            f"Parameter {name} alone has {mb(nbytes)}, more than a bucket may have (bucket_cap_mb={cap / 2**20:g},"
            f" {mb(cap)}){more}: no smaller cap makes its bucket smaller, only splitting the parameter."
        ))  # fmt: skip


def _late_rank(summary: Summary) -> Finding | None:
    """One rank that hardly waits where the others wait long: they wait for it, inside the collective."""
    ranks = sorted(summary.ranks, key=lambda rank: rank.exposed_comm_ns)
    if len(ranks) < 2 or summary.wall_ns is None:
        return None
    least, next_least = ranks[0], ranks[1]
    ahead = next_least.exposed_comm_ns - least.exposed_comm_ns
    if ahead < LATE_MIN_RATIO * summary.wall_ns or 2 * least.exposed_comm_ns > next_least.exposed_comm_ns:
        return None
    others = "the other rank" if len(ranks) == 2 else "every other rank"
    return Finding("late-rank", "warning", f"rank {least.rank}", (
        f"Rank {least.rank} is probably late: it exposes {ms(least.exposed_comm_ns)} of communication and {others} at"
        f" least {ms(next_least.exposed_comm_ns)}, waiting for it inside the collectives, which counts as running."
        f" It computes {ms(least.compute_ns)} and idles {ms(least.idle_ns)} of a step: compare its phases"
        " with the others' before you change buckets or the network."
    ))  # fmt: skip


def _exposed(worst: BucketSummary, summary: Summary, hooks: set[str]) -> Finding:
    where = f"reducer {worst.reducer}, layout {worst.layout}, bucket {worst.index}"
    several = len({bucket.reducer for bucket in summary.buckets}) > 1
    named = f"Bucket {worst.index}" + (f" of reducer {worst.reducer}" if several else "")
    names = worst.parameters
    holds = f" ({names[0]} to {names[-1]})" if len(names) > 1 else f" ({names[0]})" if names else ""
    severity = "warning" if (worst.step_ratio or 0) >= WELL_HIDDEN_RATIO else "info"
    return Finding("exposed-bucket", severity, where, (
        f"{named}{holds} costs the step most: {ms(worst.exposed_charged_ns or 0)} of its communication"
        f" are exposed, {percent(worst.step_ratio or 0)} of the step; {_next_look(worst, summary, hooks)}"
    ))  # fmt: skip


def _next_look(worst: BucketSummary, summary: Summary, hooks: set[str]) -> str:
    """The likeliest reason first."""
    compute = next(part.ns for part in summary.parts if part.name == "compute")
    if summary.comm_ns is not None and summary.comm_ns > compute:
        return (
            f"the step communicates longer ({ms(summary.comm_ns)}) than it computes ({ms(compute)}), so no bucket"
            f" size can hide it all: send fewer bytes ({'gradient accumulation' if hooks else COMPRESS}) or use a"
            " faster link."
        )
    if (worst.queue_ns or 0) > (worst.exposed_charged_ns or 0):
        return (
            f"it stood in the queue for {ms(worst.queue_ns or 0)} behind earlier buckets: look at what they wait for,"
            " and at a slow rank."
        )
    if worst.is_last:
        return (
            "it is the last of its layout and begins when backward has little left to compute: a smaller bucket_cap_mb"
            " makes the last bucket smaller."
        )
    return "it is not the last one: look at when its gradients became ready, and at which rank arrived late."
