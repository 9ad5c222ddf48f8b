"""Ranks that compute longer than others in every step: stages of a pipeline, shards or batches of unequal cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from statistics import fmean
from typing import Final

from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, measured_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.findings import UNEVEN_COMPUTE, Finding
from ddptrace.units import duration, named

DEVICE_MIN_RATIO: Final = 1.15
HOST_MIN_RATIO: Final = 1.3
"""Longest / shortest compute: on the host it also varies with what else runs there."""
STEP_MIN_RATIO: Final = 0.05
"""Of the step, that they must differ by."""
EVERY_MIN_RATIO: Final = 0.8
"""Of the steps, in which the rank that computes longest must do so."""
QUEUED_TIMES: Final = 2
"""So many times what ranks wait for a processor, which counts as compute."""
MORE_MIN_RATIO: Final = 1.05
"""Pieces of device work of the slower ranks / of the others."""

ByRank = Mapping[int, Mapping[int, int]]
"""Compute in ns by rank and step."""


def uneven_findings(result: Result, summary: Summary, blame: Blame) -> list[Finding]:
    """One, where some ranks compute longer. Not where something else takes their processors away: its finding says
    so."""
    steps = measured_steps(result.steps)[0]
    compute: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in steps:
        if row.compute_ns is not None and row.profiled:
            compute[row.rank][row.step] = row.compute_ns
    means = {rank: fmean(mine.values()) for rank, mine in compute.items()}
    if len(means) < 2 or len(means) < len(result.ranks) or not summary.window_ns:
        return []
    longest, shortest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    held = {one.rank for one in blame.suspects if one.cause not in LOCAL_PHASES}
    on_device = any(row.gpu_events for row in result.ranks)
    queued_ns = blame.crowding.queued_ns if blame.crowding is not None and not on_device else 0
    least = DEVICE_MIN_RATIO if on_device else HOST_MIN_RATIO
    if (
        longest in held
        or means[longest] < least * means[shortest]
        or means[longest] - means[shortest] < max(STEP_MIN_RATIO * summary.window_ns, QUEUED_TIMES * queued_ns)
        or not _is_usual(compute, longest, shortest, (1 + least) / 2)
    ):
        return []
    middle = (means[longest] + means[shortest]) / 2
    slower = {rank for rank, mean in means.items() if mean >= middle}
    return [_uneven(result, means, slower)]


def _is_usual(compute: ByRank, longest: int, shortest: int, least: float) -> bool:
    """Whether one computes longer than the other in nearly every step: of those that both have, else of all."""
    common = sorted(compute[longest].keys() & compute[shortest].keys())
    pairs = [(compute[longest][step], compute[shortest][step]) for step in common] or [
        (longer, shorter) for longer in compute[longest].values() for shorter in compute[shortest].values()
    ]
    return sum(longer >= least * shorter for longer, shorter in pairs) >= EVERY_MIN_RATIO * len(pairs)


def _uneven(result: Result, means: Mapping[int, float], slower: AbstractSet[int]) -> Finding:
    others = means.keys() - slower
    long, short = (fmean(means[rank] for rank in ranks) for ranks in (slower, others))
    verb, each = ("computes", "") if len(slower) == 1 else ("compute", " (mean)")
    return UNEVEN_COMPUTE(
        named("rank", sorted(slower)),
        f"{named('Rank', sorted(slower))} {verb} for {duration(long)} of a step{each}, {named('rank', sorted(others))}"
        f" for {duration(short)}{_times(long, short, ': {} times as long')}{_of(means)}."
        f" {_advice(result, slower, others)}",
    )


def _of(means: Mapping[int, float]) -> str:
    """The extremes, where they are not the whole sentence."""
    if len(means) == 2:
        return ""
    longest, shortest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    told = f"; the longest, rank {longest}, computes {{}} times as long as the shortest, rank {shortest}"
    return _times(means[longest], means[shortest], told)


def _times(longer: float, shorter: float, told: str) -> str:
    """`told` with the ratio; nothing where the shorter is 0, of which nothing is a multiple."""
    return told.format(f"{longer / shorter:.2f}") if shorter else ""


def _advice(result: Result, slower: AbstractSet[int], others: AbstractSet[int]) -> str:
    even = "Divide the work more evenly: stages of a pipeline, shards of tables or experts, lengths of batches."
    pieces = _pieces(result)
    if not (slower | others) <= pieces.keys():
        return even
    more, fewer = (fmean(pieces[rank] for rank in ranks) for ranks in (slower, others))
    count = f"{more:,.0f} pieces of work on the device, against {fewer:,.0f}"
    if more >= MORE_MIN_RATIO * fewer:
        return f"More is launched there: {count} in a step. {even}"
    return (
        f"No more is launched there ({count} in a step), so each piece takes longer: larger inputs, or a slower device."
        f" {even}"
    )


def _pieces(result: Result) -> dict[int, float]:
    """Launched in a step, by rank; empty without a device."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in result.launches:
        found[row.rank].append(row.launched)
    return {rank: fmean(counts) for rank, counts in found.items()}
