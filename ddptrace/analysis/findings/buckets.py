"""Finds what is wrong with gradient buckets, and with the buffers that DDP sends before each forward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.buckets.layouts import DROPS_LAYERS, Heaviest, ReducerFacts, Sized, module_of
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import buffer_cost, gradients_one_by_one
from ddptrace.analysis.summary import Summary, measured_steps
from ddptrace.findings import (
    BUCKET_OVER_CAP,
    BUFFER_BROADCASTS,
    FIND_UNUSED_PARAMETERS,
    GRADIENTS_ONE_BY_ONE,
    HEAVY_LAYER,
    Finding,
)
from ddptrace.schema import Origin
from ddptrace.units import duration, named, percent, size

OVER_MIN_RATIO: Final = 1.25
"""A bucket that exceeds the cap by less is as large as the cap asks."""
TOLD: Final = 3
"""Layouts of one reducer, one by one."""
MIB: Final = 2**20
DEFAULT_CAP_NBYTES: Final = 25 * MIB
FIRST_CAP_NBYTES: Final = MIB
"""Of DDP's first bucket, where no cap was given."""


def bucket_cap_findings(reducers: Sequence[ReducerFacts]) -> Iterator[Finding]:
    """One for each reducer: every rank has the same reducers."""
    for reducer in {reducer.reducer: reducer for reducer in reducers}.values():
        why = _parameter(reducer) if reducer.over_cap else _filled(reducer)
        if why:
            yield BUCKET_OVER_CAP(f"reducer {reducer.reducer}", why)


def layout_words(reducer: ReducerFacts) -> str:
    """As in "1 bucket of 9.4 MB, then 4 of 1.1 MB to 4.7 MB"; of many layouts the first ones and the last."""
    told = [_sizes(sizes, " bucket" if at == 0 else "") for at, sizes in enumerate(reducer.sizes)]
    if len(told) > TOLD:
        told[TOLD - 1 : -1] = ["…"]
    return ", then ".join(told) + _first(reducer)


def _sizes(sizes: Sequence[int], what: str) -> str:
    ends = dict.fromkeys((size(min(sizes, default=0)), size(max(sizes, default=0))))
    return f"{len(sizes)}{what}{'s' if what and len(sizes) != 1 else ''} of {' to '.join(ends)}"


def _first(reducer: ReducerFacts) -> str:
    """Only the default cap leaves the first bucket smaller."""
    sizes, is_default = reducer.sizes[-1], reducer.bucket_cap_nbytes == DEFAULT_CAP_NBYTES
    if is_default and len(sizes) > 1 and FIRST_CAP_NBYTES <= sizes[0] < max(sizes):
        return (
            f"; unless bucket_cap_mb is given, DDP closes the first bucket at {size(FIRST_CAP_NBYTES)} to begin early"
        )
    return ""


def _parameter(reducer: ReducerFacts) -> str:
    """A parameter that alone is larger than the cap."""
    count = len(reducer.over_cap)
    name, nbytes = max(reducer.over_cap, key=lambda parameter: parameter[1])
    more = f", as do {count - 1} more parameters" if count > 1 else ""
    return (
        f"Parameter {name} alone has {size(nbytes)} and exceeds the cap of a bucket ({_cap(reducer)}){more}. A smaller"
        f" cap does not make its bucket smaller; only splitting the parameter does.{_nearly_all(reducer)}"
    )


def _nearly_all(reducer: ReducerFacts) -> str:
    """Advice for a cap that is too small for the model's parameters."""
    buckets = len(reducer.sizes[-1]) if reducer.sizes else 0
    if not 2 * len(reducer.over_cap) > buckets > 2:
        return ""
    return (
        f" Most of the {buckets} buckets hold such a parameter: raise bucket_cap_mb, if `ddptrace advise`"
        " predicts that it helps."
    )


def _filled(reducer: ReducerFacts) -> str:
    cap, filled = reducer.bucket_cap_nbytes, reducer.filled
    if cap is None or filled is None or filled.nbytes <= OVER_MIN_RATIO * cap:
        return ""
    name, nbytes = filled.by
    return (
        f"Bucket {filled.index} has {size(filled.nbytes)}, {filled.nbytes / cap:.1f} times its cap ({_cap(reducer)})."
        f" The gradient that exceeds the cap closes the bucket; here {name} adds {size(nbytes)} to"
        f" {size(filled.nbytes - nbytes)}.{_within(cap, reducer.largest_nbytes)}"
    )


def _within(cap: int, largest: int) -> str:
    """A bucket is larger than the cap by less than its last parameter."""
    least = math.floor((cap - largest) / MIB * 1e4) / 1e4
    return f" With bucket_cap_mb={least:g} no bucket exceeds {size(cap)}." if least else ""


def _cap(reducer: ReducerFacts) -> str:
    cap = reducer.bucket_cap_nbytes or 0
    return f"bucket_cap_mb={cap / MIB:.3g}, {size(cap)}"


# Unused parameters ----------------------------------------------------------------------------------------------------


NAMED: Final = 3
"""Parameters, one by one."""


@dataclass(frozen=True, slots=True)
class _UnusedByReducer:
    """One reducer on all ranks: parameters by how many of the backwards gave them no gradient."""

    facts: ReducerFacts
    backwards: int
    without: tuple[tuple[Sized, int], ...]


def unused_findings(ranks: Sequence[RankFacts], result: Result) -> Iterator[Finding]:
    """One for each reducer that looks for unused parameters."""
    numbers = sorted({reducer.reducer for rank in ranks for reducer in rank.reducers if reducer.unused is not None})
    for seen in (_unused_by_reducer(number, ranks) for number in numbers):
        if seen.backwards:
            where = f"reducer {seen.facts.reducer}"
            yield FIND_UNUSED_PARAMETERS(where, f"{_unused_words(seen)} {_search_cost_words(ranks, result)}")


def _unused_by_reducer(number: int, ranks: Sequence[RankFacts]) -> _UnusedByReducer:
    mine = [
        reducer
        for rank in ranks
        for reducer in rank.reducers
        if reducer.reducer == number and reducer.unused is not None
    ]
    known = [reducer.unused for reducer in mine if reducer.unused is not None]
    without: Counter[Sized] = Counter()
    for unused in known:
        without.update(dict(unused.without))
    return _UnusedByReducer(mine[0], sum(unused.backwards for unused in known), tuple(without.items()))


def _unused_words(seen: _UnusedByReducer) -> str:
    """Which parameters had no gradient, and what to do."""
    facts = seen.facts
    of = f"{facts.parameters} parameters of {facts.kind} of {facts.module}"
    never = [one for one, count in seen.without if count == seen.backwards]
    if not seen.without:
        return (
            f"find_unused_parameters=True finds nothing: in {seen.backwards} backwards all {of} got a gradient. Remove"
            " the option."
        )
    if len(never) == len(seen.without):
        zeros = "" if facts.kind == DROPS_LAYERS else ", which every step sends as zeros"
        told = ", ".join(name for name, _ in never[:NAMED]) + f" and {len(never) - NAMED} more" * (len(never) > NAMED)
        return (
            f"{len(never)} of {of} never got a gradient, in {seen.backwards} backwards: {told}."
            f" They have {size(sum(nbytes for _, nbytes in never))}{zeros}. Remove them from the model or set"
            " requires_grad=False, and remove find_unused_parameters."
        )
    return (
        f"{len(seen.without)} of {of} got no gradient in some of {seen.backwards} backwards, so the program needs"
        " find_unused_parameters=True."
    )


def _search_cost_words(ranks: Sequence[RankFacts], result: Result) -> str:
    """Means over rank-steps."""
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    word = Origin.UNUSED_PARAMETERS.word
    rows = [row for row in result.collectives if row.origin == word and (row.rank, row.step) in steps]
    ran = [row.comm_ns for row in rows if row.comm_ns is not None]
    searched = [ns for rank in ranks for ns in rank.searched_ns]
    parts = [f"the all-reduce of its bitmap runs for {duration(sum(ran) / len(steps))}"] if ran else []
    parts += [f"the graph walk takes {duration(sum(searched) / len(searched))} each time"] if searched else []
    told = f"{', '.join(parts)}; and the reducer" if parts else "the reducer"
    return f"Its cost in a step: {told} keeps its first buckets and never sorts them by when gradients become ready."


# Layers that outweigh all others --------------------------------------------------------------------------------------


HEAVY_MIN_RATIO: Final = 0.5
"""Of all gradients of its reducer."""
FEWEST_MODULES: Final = 3
"""Of two modules, one always has half."""
EXPOSED_MIN_RATIO: Final = 0.02
"""Of the step, that its buckets must expose."""


def heavy_layer_findings(summary: Summary, reducers: Sequence[ReducerFacts], late_ns: int = 0) -> Iterator[Finding]:
    """One for each reducer: every rank has the same reducers. `late_ns`: part of the step that late ranks cost, which
    no smaller gradient would win back."""
    for reducer in {reducer.reducer: reducer for reducer in reducers}.values():
        heavy = reducer.heaviest
        if heavy is None or reducer.modules < FEWEST_MODULES or heavy.nbytes < HEAVY_MIN_RATIO * reducer.nbytes:
            continue
        mine = [bucket for bucket in summary.buckets if bucket.reducer == reducer.reducer]
        carriers = [bucket for bucket in mine if heavy.module in map(module_of, bucket.parameters)]
        exposed = sum(bucket.exposed_charged_ns or 0 for bucket in carriers)
        if summary.window_ns and exposed - late_ns >= EXPOSED_MIN_RATIO * summary.window_ns:
            ran = sum(bucket.comm_ns or 0 for bucket in carriers), sum(one.comm_ns or 0 for one in mine)
            where = named("bucket", sorted({bucket.index for bucket in carriers}))
            share = f"{duration(ran[0])} of the {duration(ran[1])} that all buckets take in a step"
            cost = f"{duration(exposed)} of that are exposed, {percent(exposed / summary.window_ns)} of the step"
            yield _heavy(reducer, heavy, f"{where} ({share}); {cost}")


def _heavy(reducer: ReducerFacts, heavy: Heaviest, told: str) -> Finding:
    more = f" and {heavy.parameters - 1} more" if heavy.parameters > 1 else ""
    return HEAVY_LAYER(
        f"reducer {reducer.reducer}",
        f"Layer {heavy.module or heavy.largest} ({heavy.largest}{more}) has {size(heavy.nbytes)} of the"
        f" {size(reducer.nbytes)} of gradients, {percent(heavy.nbytes / reducer.nbytes)}. It goes in {told}. No bucket"
        " size divides a parameter: send fewer bytes of it (a compressing hook; of an embedding, a sparse gradient)"
        " or freeze it.",
    )


# Gradients that are reduced one by one --------------------------------------------------------------------------------


def one_by_one_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """One for the run, if that is most of what the typical step waits for."""
    found = gradients_one_by_one(summary, result)
    if found is None or not summary.window_ns:
        return
    large = f" of {size(round(found.mean_nbytes))} in the mean" if found.mean_nbytes is not None else ""
    yield GRADIENTS_ONE_BY_ONE(
        "run",
        f"The program all-reduces each gradient by itself: {found.calls:.0f} calls in a step{large}, each of"
        f" {duration(found.mean_ns)}. {duration(found.exposed_ns)} of a step wait for them,"
        f" {percent(found.exposed_ns / summary.window_ns)}, and the host launches each one. Put many gradients into one"
        " call: DistributedDataParallel sends buckets of 25 MB while backward computes; without it, flatten gradients"
        " into a few tensors before the all-reduce.",
    )


# Buffers that DDP broadcasts before each forward ----------------------------------------------------------------------


COST_MIN_RATIO: Final = 0.03
"""Of the step."""
NO_BROADCASTS: Final = (
    "Pass broadcast_buffers=False to DistributedDataParallel. Each rank then keeps its own buffers: running statistics"
    " of BatchNorm differ between ranks, which training does not read but evaluation does, so evaluate with rank 0's or"
    " use SyncBatchNorm, whose statistics are the same on all ranks."
)


def buffer_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Say what DDP's broadcasts of buffers cost the typical step."""
    found = buffer_cost(ranks, result)
    if found is None or not summary.window_ns:
        return
    host, cost = found
    if cost < COST_MIN_RATIO * summary.window_ns:
        return
    idle = f", and the device idles for {duration(cost)} of that" if any(rank.on_device for rank in ranks) else ""
    yield BUFFER_BROADCASTS(
        "run",
        "Before forward, DDP sends the model's buffers from rank 0 to all ranks. Packing, sending and unpacking them"
        f" holds the host for {duration(host)} of a step{idle}: {percent(cost / summary.window_ns)} of the step."
        f" {NO_BROADCASTS}",
    )
