"""Why the most exposed bucket is exposed, the likeliest reason first, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from ddptrace.analysis.findings.facts import RankFacts
from ddptrace.analysis.findings.matched_time import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Summary
from ddptrace.analysis.wording import amount, ms
from ddptrace.schema import Evidence

MIB: Final = 1 << 20

FEW_NBYTES: Final = 1 << 16
"""So little takes half a millisecond at 1 Gbit/s: what takes longer is latency, or waits."""

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
    return _last(worst, result, ranks) if worst.is_last else _earlier(worst, result)


def _is_only(worst: BucketSummary, ranks: Sequence[RankFacts]) -> bool:
    """Whether it holds the gradients of a whole reducer, and could be divided."""
    reducers = (one for rank in ranks for one in rank.reducers if one.reducer == worst.reducer)
    return any(len(one.sizes[worst.layout]) == 1 for one in reducers if worst.layout < len(one.sizes)) and (
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


def _last(worst: BucketSummary, result: Result, ranks: Sequence[RankFacts]) -> str:
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
    reducers = (one for rank in ranks for one in rank.reducers if one.reducer == worst.reducer)
    bulky = {name: nbytes for one in reducers for name, nbytes in one.bulky}
    most = (worst.nbytes or 0) / 2  # it may be bulky in the buckets of another layout alone
    name = next((name for name in worst.parameters if bulky.get(name, 0) > most), None)
    return None if name is None else f"{name} alone has {amount(bulky[name])} of its {amount(worst.nbytes or 0)}"


def _earlier(worst: BucketSummary, result: Result) -> str:
    key = (worst.reducer, worst.layout, worst.index)
    mine = (row for row in result.buckets if (row.reducer, row.layout, row.index) == key)
    looks = ["when its gradients became ready"] if any(row.ready_at_ns is not None for row in mine) else []
    looks += ["which rank arrived late"] if len(result.ranks) > 1 else []
    told = "it is not the last one"
    return f"{told}: look at {' and at '.join(looks)}." if looks else f"{told}, and what ran beside it was shorter."
