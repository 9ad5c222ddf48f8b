"""What the measurements of collectives say, in sentences; each states the numbers that it rests on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from ddptrace.analysis.collectives.transfers import SIZES_MIN, SPAN_MIN
from ddptrace.bench.collectives.fit import ROUNDS_MIN, Fit
from ddptrace.bench.statistics import ROUNDS_SURE
from ddptrace.render.words import counted, duration, percent, rate, size

WRONG_MIN_RATIO: Final = 0.25
"""A line that is off by more than this on average describes nothing."""
CALLED: Final = {
    "all_reduce": "An all-reduce", "all_gather": "An all-gather", "reduce_scatter": "A reduce-scatter",
    "broadcast": "A broadcast", "all_to_all": "An all-to-all", "reduce": "A reduce", "gather": "A gather",
    "scatter": "A scatter", "send_recv": "A send to a neighbour",
}  # fmt: skip


def fit_words(fits: Mapping[str, Mapping[int, Fit | None]]) -> list[str]:
    """A sentence on each op that was fitted for some number of ranks, and one on all the others."""
    without = [op for op, of_op in fits.items() if not any(of_op.values())]
    told = [op_words(op, of_op) for op, of_op in fits.items() if op not in without]
    if without:
        wanted = f"{SIZES_MIN} sizes or more, {SPAN_MIN} times apart, in {ROUNDS_MIN} rounds or more"
        told.append(f"Start and rate are not fitted for {', '.join(without)}: that takes {wanted}.")
    return told


def short_words(rounds: Sequence[int]) -> list[str]:
    """On cells whose intervals are not what they are called, where the time that each may take allows no more."""
    few = sum(count < ROUNDS_SURE for count in rounds)
    if few in (0, len(rounds)):
        return []
    return [f"Of {counted(len(rounds), 'cell')} {few} had time for fewer than {ROUNDS_SURE} rounds: there the interval "
            "is only the range of what was seen."]  # fmt: skip


def op_words(op: str, fits: Mapping[int, Fit | None]) -> str:
    """One sentence on an op, with a part for each number of ranks."""
    parts = [f"over {counted(ranks, 'rank')} {_part(one)}" for ranks, one in fits.items()]
    return f"{CALLED[op]} {'; '.join(parts)}."


def _part(one: Fit | None) -> str:
    if one is None:
        return "was measured too little to be fitted"
    off = f"fit off by {percent(one.rms_ratio)} on average, {percent(one.worst_ratio)} at most"
    if one.rms_ratio > WRONG_MIN_RATIO:
        return f"is described badly by one start and one rate ({off})"
    if one.rate is None:
        sizes = f"from {size(one.least_nbytes)} to {size(one.most_nbytes)}"
        return f"takes no surely longer time with a larger size, {sizes}, so no rate is told ({off})"
    moves = f"moves {rate(one.rate)} ({rate(one.rate_low)} to {rate(one.rate_high)})"
    if not one.start_is_seen:
        return f"{moves}, and its start is too short to be told from sizes of {size(one.least_nbytes)} and more ({off})"
    start = f"{duration(one.start_ns)} ({duration(one.start_low_ns)} to {duration(one.start_high_ns)})"
    return f"starts in about {start} and then {moves}; {_half(one)} ({off})"


def _half(one: Fit) -> str:
    """Beyond the sizes that were measured nothing is told of it."""
    half, low, high = one.half_nbytes or 0, one.half_low_nbytes or 0, one.half_high_nbytes or 0
    if one.least_nbytes <= half <= one.most_nbytes:
        interval = f"{size(round(low))} to {size(round(high))}"
        return f"up to about {size(round(half))} ({interval}) the start is more than half of it"
    sure = high < one.least_nbytes or low > one.most_nbytes
    side = "less" if half < one.least_nbytes else "more"
    return f"at every size measured the start is {'' if sure else 'about half of it or '}{side} than half"


def traced_words(times: Sequence[tuple[int | None, float]], evidence: Sequence[str]) -> list[str]:
    """On exec times of traces beside the stopwatch's, given as (exec, stopwatch)."""
    ratios = [exec_ns / watch_ns for exec_ns, watch_ns in times if exec_ns is not None]
    if not ratios:
        return ["No traced run showed when a collective itself ran."]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return [
        f"By the traces (evidence: {' and '.join(evidence)}) a collective itself ran for {middle:.2f} times what the "
        f"stopwatch says, in the middle of {counted(len(ratios), 'cell')} ({low:.2f} to {high:.2f}): below 1 the rest "
        "is launching and learning of the end; above 1 the traced call, alone after a barrier and under a profiler, "
        "took longer than one in a batch."
    ]
