"""What to change about FSDP units, each with what it would save; silent where it would not help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.analysis.ranks.matched_time import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, Summary
from ddptrace.analysis.units.costs import (
    EarlierGathers,
    FsdpCosts,
    KeptParameters,
    LargeUnit,
    QueuedGathers,
    WideReductions,
)
from ddptrace.findings import (
    FSDP_COMMUNICATOR,
    FSDP_PREFETCH,
    FSDP_REDUCTION,
    FSDP_RESHARD,
    FSDP_UNIT_SIZE,
    Finding,
)
from ddptrace.schema import Phase
from ddptrace.units import counted, duration, percent, size

PREFETCH: Final = {
    Phase.FORWARD: "set_modules_to_forward_prefetch",
    Phase.BACKWARD: "set_modules_to_backward_prefetch",
}


def unit_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Judge the FSDP units of a run. Where communication is long as ranks are late, none of this would help."""
    matched = matched_time(result)
    is_waiting = matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO
    if not summary.window_ns or is_waiting or result.suspects:
        return
    costs, worth_ns = FsdpCosts(result, ranks), WORTH_RATIO * summary.window_ns
    large, kept, wide, queued = costs.large(), costs.kept(), costs.wide(), costs.queued()
    earlier = [found for phase in PREFETCH if (found := costs.earlier(phase)) and found.saved_ns >= worth_ns]
    for found in sorted(earlier, key=lambda one: -one.saved_ns):
        yield FSDP_PREFETCH("run", _earlier_words(found, summary.window_ns))
    if large is not None and large.saved_ns >= worth_ns:
        yield FSDP_UNIT_SIZE(f"unit {large.name}", _large_words(large, summary.window_ns))
    if kept is not None and kept.saved_ns >= worth_ns:
        yield FSDP_RESHARD("run", _kept_words(kept, summary.window_ns))
    if queued is not None and queued.saved_ns >= worth_ns:
        yield FSDP_COMMUNICATOR("run", _queued_words(queued, summary.window_ns))
    if wide is not None and wide.saved_ns >= worth_ns:
        yield FSDP_REDUCTION("run", _wide_words(wide, summary.window_ns))


def _earlier_words(found: EarlierGathers, window_ns: int) -> str:
    phase, ahead = found.phase.name.lower(), f"{found.distance:g} ahead" if found.distance else "when it is needed"
    more = f" and {len(found.units) - 1} more" if len(found.units) > 1 else ""
    waits = (
        f"The step waits {duration(found.exposed_ns)} for parameters that FSDP gathers in {phase}"
        f" ({found.units[0]}{more}, each gathered {ahead})."
    )
    saves = f"that would hide up to {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)} of the step)."
    if found.blocks:
        how = "" if found.distance else f", and {PREFETCH[found.phase]} with the next unit"
        return (
            f"{waits} The host waits for each gather at once, so no prefetch hides it: let it go on with"
            f" _set_unshard_async_op(True) of the root module{how}; {saves}"
        )
    units = "unit" if not found.distance else f"{found.distance + 1:g} units"
    return f"{waits} Gather earlier: call {PREFETCH[found.phase]} of each unit with the next {units}; {saves}"


def _large_words(found: LargeUnit, window_ns: int) -> str:
    other = (
        "is the only one, so that nothing is computed beside its communication"
        if found.median_nbytes is None
        else f"has {found.nbytes / found.median_nbytes:.0f} times the bytes of the others (median of"
        f" {counted(found.others, 'unit')}: {size(found.median_nbytes)})"
    )
    return (
        f"FSDP unit {found.name} with {size(found.nbytes)} {other}: {duration(found.exposed_ns)} of a step wait for it."
        f" Call fully_shard on {_parts_words(found.parts)} as well; that would hide up to {duration(found.saved_ns)}"
        f" ({percent(found.saved_ns / window_ns)} of the step)."
    )


def _parts_words(modules: Sequence[str]) -> str:
    """As in "embed", "embed and head" and "embed and 2 more modules"."""
    if len(modules) <= 2:
        return " and ".join(modules)
    return f"{modules[0]} and {counted(len(modules) - 1, 'more module')}"


def _kept_words(found: KeptParameters, window_ns: int) -> str:
    return (
        f"The step waits {duration(found.exposed_ns)} ({percent(found.exposed_ns / window_ns)}) in backward for"
        f" parameters of {counted(found.units, 'FSDP unit')} that were let go after forward."
        f" reshard_after_forward=False keeps them and saves up to {duration(found.saved_ns)}, for"
        f" {size(found.nbytes)} more memory on each rank."
    )


def _queued_words(found: QueuedGathers, window_ns: int) -> str:
    return (
        f"The step waits {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)}) in backward for parameters"
        f" of {counted(found.units, 'FSDP unit')} whose gather is queued behind other collectives of its process group."
        " Where the network can carry both at once, set_separate_reduce_scatter_group of the root module (torch 2.13)"
        " lets gathers pass reductions, and saves up to this."
    )


def _wide_words(found: WideReductions, window_ns: int) -> str:
    return (
        f"The step waits {duration(found.exposed_ns)} until gradients of {counted(found.units, 'FSDP unit')} are"
        " reduced in float32. If the training bears it, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) sends half"
        f" the bytes, and saves up to {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)} of the step)."
    )
