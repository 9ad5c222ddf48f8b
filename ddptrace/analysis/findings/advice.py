"""Which bucket costs the step most, why, the likeliest reason first, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from statistics import median
from typing import Final

from ddptrace.analysis.findings.collectives import FEW_NBYTES, exposed_collective
from ddptrace.analysis.findings.ranks import WAITING_MIN_RATIO
from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.ranks.matched_time import matched_time
from ddptrace.analysis.ranks.suspects import MIN_STEPS
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, RankSummary, Summary
from ddptrace.analysis.wording import amount, ms, percent
from ddptrace.findings import EXPOSED_BUCKET, LATE_RANK, WELL_HIDDEN, Finding, Severity
from ddptrace.schema import Evidence

WELL_HIDDEN_RATIO = 0.02
"""Exposed communication below this share of the step is not worth a change."""


def bucket_findings(
    summary: Summary, result: Result, ranks: Sequence[RankFacts], comparable: bool
) -> Iterator[Finding]:
    """About the typical step. `comparable`: the ranks are known to have done the same steps together."""
    exposed = next((part for part in summary.parts if part.name == "exposed_comm"), None)
    if exposed is None or not summary.comm_ns:
        return
    if exposed.ratio < WELL_HIDDEN_RATIO:
        yield WELL_HIDDEN(
            "run",
            f"Communication is well hidden: {percent(exposed.ratio)} of the step waits for it ({ms(exposed.ns)}"
            f" exposed of {ms(summary.comm_ns)}, mean of {summary.steps} rank-steps): look for time elsewhere.",
        )
        return
    if result.suspects:  # it is not the communication that is slow, and they are told with what they cost
        return
    judged = {row.step for row in result.blame}
    late = late_rank(summary) if comparable and len(judged) < MIN_STEPS else None
    if late is not None:
        yield late
    elif (
        summary.worst is not None
        and 2 * sum(bucket.exposed_charged_ns or 0 for bucket in summary.buckets) >= exposed.ns
    ):
        yield _exposed(summary.worst, summary, next_look(summary.worst, summary, result, ranks))
    else:
        yield exposed_collective(exposed, result)


def _exposed(worst: BucketSummary, summary: Summary, look: str) -> Finding:
    where = f"reducer {worst.reducer}, layout {worst.layout}, bucket {worst.index}"
    several = len({bucket.reducer for bucket in summary.buckets}) > 1
    named = f"Bucket {worst.index}" + (f" of reducer {worst.reducer}" if several else "")
    names = worst.parameters
    holds = f" ({names[0]} to {names[-1]})" if len(names) > 1 else f" ({names[0]})" if names else ""
    severity: Severity = "warning" if (worst.step_ratio or 0) >= WELL_HIDDEN_RATIO else "info"
    return EXPOSED_BUCKET(
        where,
        f"{named}{holds} costs the step most: {ms(worst.exposed_charged_ns or 0)} of its communication"
        f" are exposed, {percent(worst.step_ratio or 0)} of the step; {look}",
        severity,
    )


# Why the bucket is exposed --------------------------------------------------------------------------------------------


MIB: Final = 1 << 20
BYTES_MIN_RATIO: Final = 0.5
"""Such a share of a bucket's time its bytes must take at the run's own bandwidth, to be what it costs."""


def next_look(worst: BucketSummary, summary: Summary, result: Result, ranks: Sequence[RankFacts]) -> str:
    """The end of a sentence."""
    if _is_only(worst, ranks):
        return (
            "all gradients go in this one bucket, which leaves when backward is over: a bucket_cap_mb below"
            f" {(worst.nbytes or 0) / MIB:.2g} makes several, and the first of them can hide."
        )
    matched = matched_time(result)
    if matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO:
        return "most of the communication is waiting for ranks that come late, which no bucket size shortens."
    compute = next(part.ns for part in summary.parts if part.name == "compute")
    if summary.comm_ns is not None and summary.comm_ns > compute:
        absent = _absent(worst, result)
        so = "so" if absent is None else f"but {absent}. If it is no waiting,"
        return (
            f"the step communicates longer ({ms(summary.comm_ns)}) than it computes ({ms(compute)}), {so} no bucket"
            f" size can hide it all: {_less_time(worst, result, ranks)}."
        )
    if (worst.queue_ns or 0) > (worst.exposed_charged_ns or 0):
        return (
            f"it stood in the queue for {ms(worst.queue_ns or 0)} behind earlier buckets: look at what they wait for,"
            " and at a slow rank."
        )
    return _last_bucket(worst, result, ranks) if worst.is_last else _earlier_bucket(worst, result)


def _is_only(worst: BucketSummary, ranks: Sequence[RankFacts]) -> bool:
    """Whether it holds the gradients of a whole reducer, and could be divided."""
    reducers = (reducer for rank in ranks for reducer in rank.reducers if reducer.reducer == worst.reducer)
    return any(len(reducer.sizes[worst.layout]) == 1 for reducer in reducers if worst.layout < len(reducer.sizes)) and (
        _largest(worst, ranks) is None
    )


def _absent(worst: BucketSummary, result: Result) -> str | None:
    """How many ranks of the bucket's group are here, as part of a sentence; None where all are, as far as is known."""
    key = (worst.reducer, worst.layout, worst.index)
    sizes = {row.group: row.group_size or 0 for row in result.collectives if row.bucket == key}
    here = {name: {row.rank for row in result.collectives if row.group == name} for name in sizes}
    most = max(sizes, key=lambda name: (len(here[name]), name), default=None)  # one that is alone may be of another run
    if most is None or len(here[most]) >= sizes[most]:
        return None
    verb = "is" if len(here[most]) == 1 else "are"
    return (
        f"only {len(here[most])} of {sizes[most]} ranks {verb} compared here, and waiting for the others"
        " counts as that: look there first"
    )


def _less_time(worst: BucketSummary, result: Result, ranks: Sequence[RankFacts]) -> str:
    """What makes communication shorter, by what it spends its time on."""
    if not _is_in_its_bytes(worst, result):
        return f"its {amount(worst.nbytes or 0)} are few, so its time is latency or waiting for peers, not the link's"
    fewer = _fewer_bytes(result, ranks)
    return f"send fewer bytes ({fewer}) or use a faster link" if fewer else "use a faster link"


def _is_in_its_bytes(worst: BucketSummary, result: Result) -> bool:
    """Whether its bytes can be what takes the time, at the bandwidth that collectives as large or larger had."""
    if worst.nbytes is None or worst.comm_ns is None:
        return True
    measured = (Evidence.DEVICE, Evidence.BACKEND)
    larger = [
        row.algbw_bytes_per_s
        for row in result.collectives
        if row.evidence in measured and row.algbw_bytes_per_s and (row.nbytes or 0) > worst.nbytes
    ]
    if larger:
        return worst.nbytes * 1e9 / median(larger) >= BYTES_MIN_RATIO * worst.comm_ns
    return worst.nbytes > FEW_NBYTES


def _fewer_bytes(result: Result, ranks: Sequence[RankFacts]) -> str:
    """What the program does not do already."""
    hooked = any(rank.hooks for rank in ranks)
    accumulates = any(row.backwards > row.synchronised for row in result.gradient_traffic)
    ways = ("" if hooked else "a compressing hook", "" if accumulates else "gradient accumulation")
    return ", ".join(filter(None, ways))


def _last_bucket(worst: BucketSummary, result: Result, ranks: Sequence[RankFacts]) -> str:
    begins = "it is the last of its layout and begins when backward has little left to compute"
    largest = _largest(worst, ranks)
    if largest is None:
        return f"{begins}: a smaller bucket_cap_mb makes the last bucket smaller."
    fewer = _fewer_bytes(result, ranks)
    other = (
        f"splitting the parameter or sending fewer bytes ({fewer}) does" if fewer else "splitting the parameter does"
    )
    return f"{begins}, and {largest}, so a smaller bucket_cap_mb does not make it smaller: {other}."


def _largest(worst: BucketSummary, ranks: Sequence[RankFacts]) -> str | None:
    """The one parameter that is most of it, which no cap divides; None where there is none."""
    if len(worst.parameters) == 1:
        return f"{worst.parameters[0]} is all that it holds"
    reducers = (reducer for rank in ranks for reducer in rank.reducers if reducer.reducer == worst.reducer)
    bulky = {name: nbytes for reducer in reducers for name, nbytes in reducer.bulky}
    most = (worst.nbytes or 0) / 2  # it may be bulky in the buckets of another layout alone
    name = next((name for name in worst.parameters if bulky.get(name, 0) > most), None)
    return None if name is None else f"{name} alone has {amount(bulky[name])} of its {amount(worst.nbytes or 0)}"


def _earlier_bucket(worst: BucketSummary, result: Result) -> str:
    key = (worst.reducer, worst.layout, worst.index)
    mine = (row for row in result.buckets if (row.reducer, row.layout, row.index) == key)
    looks = ["when its gradients became ready"] if any(row.ready_at_ns is not None for row in mine) else []
    looks += ["which rank arrived late"] if len(result.ranks) > 1 else []
    told = "it is not the last one"
    return f"{told}: look at {' and at '.join(looks)}." if looks else f"{told}, and what ran beside it was shorter."


# Which rank the others probably wait for ------------------------------------------------------------------------------


LATE_MIN_RATIO: Final = 0.05
"""What the least waiting rank is ahead of the next one, as a share of the step, from which on it is called late."""
TELLING: Final = ("data", "forward", "optimizer", "other")
"""Phases in which a late rank spends its time. In backward the others wait for it, so its own is the shorter one."""


def late_rank(summary: Summary) -> Finding | None:
    """One rank that hardly waits where the others wait long: they wait for it, inside the collective."""
    known = [(rank.exposed_comm_ns, rank) for rank in summary.ranks if rank.exposed_comm_ns is not None]
    known.sort(key=itemgetter(0))
    if len(known) < 2 or summary.wall_ns is None:
        return None
    (least_ns, least), (next_ns, _), ranks = known[0], known[1], [rank for _, rank in known]
    ahead = next_ns - least_ns
    if ahead < LATE_MIN_RATIO * summary.wall_ns or 2 * least_ns > next_ns:
        return None
    others = "the other rank" if len(ranks) == 2 else "every other rank at least"
    return LATE_RANK(
        f"rank {least.rank}",
        f"Rank {least.rank} is probably late: it exposes {ms(least_ns)} of communication and {others}"
        f" {ms(next_ns)}, waiting for it inside the collectives, which counts as running."
        f" It computes {ms(least.compute_ns or 0)} and idles {ms(least.idle_ns or 0)} of a step"
        f"{_longer(least, ranks[1:], ahead) or ': compare its phases with the others'} before you change buckets or the"
        " network.",
    )


def _longer(late: RankSummary, others: Sequence[RankSummary], ahead_ns: int) -> str:
    """The phase that makes it late, where one tells at least half of what it is ahead; else nothing."""
    most = {name: max(_phase_ns(rank, name) for rank in others) for name in TELLING}
    name = max(TELLING, key=lambda phase: _phase_ns(late, phase) - most[phase])
    longer_ns = _phase_ns(late, name) - most[name]
    if 2 * longer_ns < ahead_ns:
        return ""
    than = "the other's" if len(others) == 1 else "any other's"
    return f", and its {name} phase is {ms(longer_ns)} longer than {than}: look there"


def _phase_ns(rank: RankSummary, name: str) -> int:
    return next((phase.ns for phase in rank.phases if phase.name == name), 0)
