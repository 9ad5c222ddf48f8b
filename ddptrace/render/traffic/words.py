"""What the terminal and the report both say of traffic: sentences around tables, and rows of gradients and peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.traffic.digest import KindDigest, TrafficReport, UnitTraffic
from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.analysis.traffic.peers import MessageDigest, RootDigest
from ddptrace.errors import printable
from ddptrace.ops import Root, family_of
from ddptrace.render.rpc_words import pair_name
from ddptrace.render.words import both_ends, indented, op_name, shortened
from ddptrace.units import NOT_MEASURED, calls_words, counted, named, percent, size, size_range

UNEVEN_MIN_RATIO: Final = 0.01
"""Ranks that differ by less send the same."""
MOST_VARYING: Final = 3
SENT: Final = (
    "In and out: bytes of tensors; an op that works in place has no out. Sent: computed from them, not measured. It is"
    " the mean over the ranks of a group, if no rank sends more than the op needs. A ring sends that much: all-reduce"
    " 2(n-1)/n of the tensor, all-gather and reduce-scatter (n-1)/n of the whole."
)
MORE_ON_GLOO: Final = (
    "Gloo sends more for two ops: twice as much for a reduce-scatter, which it runs as an all-reduce, and up to twice"
    " as much for a reduce."
)
"""Counted on the wire, with torch 2.13."""


def sent_words(report: TrafficReport) -> str:
    return f"{SENT} {MORE_ON_GLOO}" if report.reduces_on_host else SENT


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


# Gradients: what was expected, what was seen, and why the two differ --------------------------------------------------


MOST_REDUCERS: Final = 8
SAME_RATIO: Final = 0.001
GRADIENT_HEADS: Final = ("parameters", "backwards", "synchronised", "expected", "seen", "of it")
GRADIENT_WIDTHS: Final = (11, 10, 13, 9, 9, 7)
EXPECTED: Final = "expected: all buckets, once per synchronised backward"


def gradient_lines(reducers: Sequence[GradientDigest]) -> Iterator[str]:
    if not reducers:
        return
    some = f"{MOST_REDUCERS} of {len(reducers)}; " if len(reducers) > MOST_REDUCERS else ""
    yield f"Gradients per rank and step  ({some}{EXPECTED})"
    yield f"  {'reducer':<35}{gradient_columns(GRADIENT_HEADS)}"
    for reducer in reducers[:MOST_REDUCERS]:
        yield gradient_line(reducer)
    for reducer in reducers[:MOST_REDUCERS]:
        yield from indented(printable(why_words(reducer)))


def gradient_line(one: GradientDigest) -> str:
    return f"  {one.reducer:<3}{both_ends(printable(one.name), 32):<32}{gradient_columns(gradient_figures(one))}"


def gradient_columns(words: Sequence[str]) -> str:
    return "".join(f"{word:>{width}}" for word, width in zip(words, GRADIENT_WIDTHS, strict=True))


def gradient_figures(reducer: GradientDigest) -> tuple[str, ...]:
    """Bytes of what buckets hold; backwards and those that synchronised; bytes expected, seen, and their ratio."""
    counts = calls_words(reducer.backwards), calls_words(reducer.synchronised)
    return (
        size(reducer.gradient_nbytes),
        *counts,
        size(reducer.expected_nbytes),
        size(reducer.nbytes),
        percent(reducer.sent_ratio),
    )


def why_words(reducer: GradientDigest) -> str:
    """Why the bytes seen are not those expected; nothing where they are."""
    name = f"Reducer {reducer.reducer}"
    hooks = ", ".join(reducer.hooks)
    if reducer.nbytes is None:
        return f"{name}: the hook {hooks} communicated by other means than collectives, so its bytes were not seen."
    if reducer.sent_ratio is None:
        return f"{name} sent nothing: none of its backwards was synchronised."
    if abs(reducer.sent_ratio - 1) <= SAME_RATIO:
        return ""
    told = f"{name} sent {percent(reducer.sent_ratio)} of its gradients' bytes"
    if reducer.hooks:
        return f"{told}: the hook {hooks} sends {' and '.join(reducer.dtypes) or NOT_MEASURED}."
    if reducer.sent_ratio < 1 and reducer.dtypes == reducer.parameter_dtypes:
        return f"{told}: in some backwards not all of its buckets were sent."
    return f"{told}, as {' and '.join(reducer.dtypes) or NOT_MEASURED}."


# Units that are no buckets --------------------------------------------------------------------------------------------


MOST_UNITS: Final = 12


def unit_lines(units: Sequence[UnitTraffic], per: str) -> Iterator[str]:
    if not units:
        return
    some = f"; the {MOST_UNITS} that send most of {len(units)}" if len(units) > MOST_UNITS else ""
    yield f"Units  (per rank and {per}{some})"
    yield f"  {'unit':<32} {'role':<16} {'dimension':<9}{'calls':>9}{'bytes':>12}{'sent':>12}"
    for one in units[:MOST_UNITS]:
        name, role, dimension, calls, nbytes, sent = unit_figures(one)
        yield f"  {both_ends(name, 32):<32} {both_ends(role, 16):<16} {dimension:<9}{calls:>9}{nbytes:>12}{sent:>12}"


def unit_figures(one: UnitTraffic) -> tuple[str, str, str, str, str, str]:
    sizes = size(one.nbytes), size(one.sent_nbytes)
    return printable(one.name), one.role, one.dimension, calls_words(one.calls), *sizes


# Sends and receives by pair of ranks, ops with a root by root ---------------------------------------------------------


MOST_PAIRS: Final = 12
MOST_ROOTS: Final = 8


def message_lines(messages: Sequence[MessageDigest], per: str) -> Iterator[str]:
    if not messages:
        return
    some = f"; the {MOST_PAIRS} largest of {len(messages)}" if len(messages) > MOST_PAIRS else ""
    yield f"Sends and receives  (per {per}, as each of the two ranks recorded them{some})"
    yield f"  {'from → to':<16}{'messages':>10}{'sent':>12}{'received':>12}"
    for one in messages[:MOST_PAIRS]:
        pair, calls, sent, received = message_figures(one)
        yield f"  {pair:<16}{calls:>10}{sent:>12}{received:>12}"


def message_figures(one: MessageDigest) -> tuple[str, str, str, str]:
    pair = f"{one.source} → {one.destination}"
    return pair, calls_words(one.messages), size(one.sent_nbytes), size(one.received_nbytes)


def root_lines(roots: Sequence[RootDigest], per: str) -> Iterator[str]:
    if not roots:
        return
    some = f", the {MOST_ROOTS} largest of {len(roots)}" if len(roots) > MOST_ROOTS else ""
    yield f"Ops with a root  (per {per}; sent by all ranks together{some})"
    yield f"  {'op':<22} {'group':<8} {'root':<16}{'calls':>9}{'sent':>12}"
    for one in roots[:MOST_ROOTS]:
        op, group, root, calls, sent = root_figures(one)
        yield f"  {both_ends(op, 22):<22} {shortened(group, 8):<8} {root:<16}{calls:>9}{sent:>12}"


def root_figures(root: RootDigest) -> tuple[str, str, str, str, str]:
    way = "from" if family_of(root.op).root is Root.FROM else "to"
    group = printable(root.group) or NOT_MEASURED
    return op_name(root.op), group, f"{way} rank {root.root}", calls_words(root.calls), size(root.sent_nbytes)
