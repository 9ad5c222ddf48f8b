"""The sentences around the tables of traffic, on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.traffic.digest import KindDigest, TrafficReport
from ddptrace.analysis.wording import named
from ddptrace.render.rpc.words import pair_name
from ddptrace.render.words import counted, op_name, size, size_range

UNEVEN_MIN_RATIO: Final = 0.01
"""Ranks that differ by less send the same."""
MOST_VARYING: Final = 3

SENT: Final = (
    "In and out: bytes of tensors; an op that works in place has no out. Sent: computed from them, not measured. It is"
    " what a rank sends, on average over its group, where no more is sent than the op needs, as in a ring (all-reduce"
    " 2(n-1)/n of the tensor, all-gather and reduce-scatter (n-1)/n of the whole)."
)

MORE_ON_GLOO: Final = (
    "Gloo sends more for two ops: twice as much for a reduce-scatter, of which it makes an all-reduce, and for a reduce"
    " up to twice as much."
)
"""Counted on the wire, with torch 2.13."""


def sent_words(kinds: Sequence[KindDigest]) -> str:
    more = any(kind.op.startswith("reduce_scatter") or kind.op == "reduce" for kind in kinds)
    return f"{SENT} {MORE_ON_GLOO}" if more else SENT


def counted_words(report: TrafficReport) -> str:
    """Which steps the means are over."""
    if report.per != "step":
        return "no step was found: sums over the whole run"
    which = " after step 0" if report.steps[0] > 0 else ""
    return f"mean of {counted(report.rank_steps, 'rank-step')}{which}"


def rank_words(report: TrafficReport) -> str:
    """What a rank sends, and all of them; and who sends more than the others."""
    per = "per step" if report.per == "step" else "in the whole run"
    total = sum(rank.sent_nbytes for rank in report.ranks)
    if len(report.ranks) == 1:
        return f"Rank {report.ranks[0].rank} sends {size(total)} {per}."
    most = max(report.ranks, key=lambda rank: rank.sent_nbytes)
    least = min(report.ranks, key=lambda rank: rank.sent_nbytes)
    all_ = f"all {len(report.ranks)} together {size(total)}"
    if most.sent_nbytes - least.sent_nbytes <= UNEVEN_MIN_RATIO * most.sent_nbytes:
        return f"Every rank sends {size(most.sent_nbytes)} {per}, {all_}."
    return (
        f"Rank {most.rank} sends most, {size(most.sent_nbytes)} {per}, and rank {least.rank} least,"
        f" {size(least.sent_nbytes)}; {all_}."
    )


def uncounted_words(report: TrafficReport) -> str:
    """What is missing from the means."""
    if not report.uncounted:
        return ""
    after = " after step 0" if report.steps[0] > 0 else ""
    return f"Without {named('rank', report.uncounted)}, where no whole step{after} was found."


def varying_words(kinds: Sequence[KindDigest]) -> str:
    """Which kinds do not have the same bytes in every step; nothing where all have."""
    varying = [kind for kind in kinds if kind.nbytes_min != kind.nbytes_max]
    if not varying:
        return ""
    told = (
        f"{op_name(kind.op)} ({kind.origin or 'origin not known'}, group {kind.group or '-'})"
        f" {size_range(kind.nbytes_min, kind.nbytes_max)}"
        for kind in varying[:MOST_VARYING]
    )
    rest = f", and {counted(len(varying) - MOST_VARYING, 'more kind')}" if len(varying) > MOST_VARYING else ""
    return f"Not the same in every step and on every rank: {', '.join(told)}{rest}."


def steps_words(pair: RpcDigest) -> str:
    """Those that the means are over; a pair whose caller has no step is summed over the run."""
    return f"{pair.steps:,}" if pair.steps else "all run"


def rpc_words(pairs: Sequence[RpcDigest]) -> Iterator[str]:
    """Pairs that do not exchange the same in every step, and gradients that nobody saw."""
    varying = [pair for pair in pairs if pair.nbytes_min != pair.nbytes_max]
    if varying:
        told = (
            f"{pair_name(pair)} {pair.op or ''} {size_range(pair.nbytes_min, pair.nbytes_max)}"
            for pair in varying[:MOST_VARYING]
        )
        rest = f", and {counted(len(varying) - MOST_VARYING, 'more', 'more')}" if len(varying) > MOST_VARYING else ""
        yield f"Not the same in every step: {', '.join(told)}{rest}."
    if any(pair.gradient_inferred for pair in pairs):
        yield "Some gradients were not seen when they left: their size is that of the arguments."
