"""Finds what each kind of parallelism costs: FSDP units, tensor parallelism, pipelines and experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.experts.digest import LayerDigest, layer_digests
from ddptrace.analysis.pipeline.digest import (
    PipelineDigest,
    SlowStage,
    largest_bubble,
    pipeline_digests,
    slowest_stage,
)
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.ranks.digest import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, Summary
from ddptrace.analysis.units.costs import (
    EarlierGathers,
    EarlyReductions,
    FsdpCosts,
    KeptParameters,
    LargeUnit,
    QueuedGathers,
    WideReductions,
)
from ddptrace.analysis.units.digest import TensorCost, tensor_cost
from ddptrace.findings import (
    EXPERT_IMBALANCE,
    FSDP_ACCUMULATION,
    FSDP_COMMUNICATOR,
    FSDP_PREFETCH,
    FSDP_REDUCTION,
    FSDP_RESHARD,
    FSDP_UNIT_SIZE,
    PIPELINE_BUBBLE,
    SLOW_STAGE,
    TENSOR_EXPOSED,
    Finding,
)
from ddptrace.schema import Phase
from ddptrace.units import counted, duration, percent, size


def _ranks_are_late(result: Result) -> bool:
    """Whether a rank is named as late, or most of the communication is waiting for ranks."""
    matched = matched_time(result)
    return bool(result.suspects) or (matched is not None and matched.waiting_ratio >= WAITING_MIN_RATIO)


# FSDP units -----------------------------------------------------------------------------------------------------------


PREFETCH: Final = {
    Phase.FORWARD: "set_modules_to_forward_prefetch",
    Phase.BACKWARD: "set_modules_to_backward_prefetch",
}


def unit_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """Judge the FSDP units of a run. Where communication is long as ranks are late, none of this would help."""
    if not summary.window_ns or _ranks_are_late(result):
        return
    costs, worth_ns = FsdpCosts(result, ranks), WORTH_RATIO * summary.window_ns
    large, kept, wide, queued = costs.large(), costs.kept(), costs.wide(), costs.queued()
    early = costs.early()
    earlier = [found for phase in PREFETCH if (found := costs.earlier(phase)) and found.saved_ns >= worth_ns]
    for found in sorted(earlier, key=lambda one: -one.saved_ns):
        yield FSDP_PREFETCH("run", _earlier_words(found, summary.window_ns))
    if early is not None and early.saved_ns >= worth_ns:
        yield FSDP_ACCUMULATION("run", _early_words(early, summary.window_ns))
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
    more = " (what is queued behind them then begins earlier)" if found.saved_ns > found.exposed_ns else ""
    return (
        f"The step waits {duration(found.exposed_ns)} ({percent(found.exposed_ns / window_ns)}) in backward for"
        f" parameters of {counted(found.units, 'FSDP unit')} that were freed after forward."
        f" reshard_after_forward=False keeps them and saves up to {duration(found.saved_ns)}{more},"
        f" for {size(found.nbytes)} more memory on each rank."
    )


def _queued_words(found: QueuedGathers, window_ns: int) -> str:
    return (
        f"The step waits {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)}) in backward for parameters"
        f" of {counted(found.units, 'FSDP unit')} whose gather is queued behind other collectives of its process group."
        " Where the network can carry both at once, set_separate_reduce_scatter_group of the root module (torch 2.13)"
        " lets gathers pass reductions, and saves up to this."
    )


def _early_words(found: EarlyReductions, window_ns: int) -> str:
    saves = f"saves up to {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)} of the step)"
    tails = (
        " Without that memory, set_is_last_backward(False) there lets the next forward run beside the last reduction,"
        f" and saves up to {duration(found.tails_ns)}."
        if found.tails_ns
        else ""
    )
    return (
        f"Gradients are accumulated over {found.backwards:g} backwards of an update, and FSDP reduces those of"
        f" {counted(found.units, 'unit')} in each: the step waits {duration(found.exposed_ns)} for reductions before"
        f" the last backward. set_requires_gradient_sync(False) of the root module before these backwards {saves}, for"
        f" up to {size(found.nbytes)} more memory on each rank.{tails}"
    )


def _wide_words(found: WideReductions, window_ns: int) -> str:
    return (
        f"The step waits {duration(found.exposed_ns)} until gradients of {counted(found.units, 'FSDP unit')} are"
        " reduced in float32. If the training bears it, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) sends half"
        f" the bytes, and saves up to {duration(found.saved_ns)} ({percent(found.saved_ns / window_ns)} of the step)."
    )


# Experts --------------------------------------------------------------------------------------------------------------


UNEVEN_MIN_RATIO: Final = 1.2
"""What the rank with most gets / mean."""


def expert_findings(result: Result, summary: Summary) -> Iterator[Finding]:
    """Name the layer whose imbalance costs most; of several that cost as much, the most uneven one."""
    window = summary.window_ns or 0
    uneven = [one for one in layer_digests(result) if one.imbalance_ratio >= UNEVEN_MIN_RATIO and _matters(one, window)]
    if uneven:
        worst = max(uneven, key=lambda one: (one.cost_ns or 0, one.imbalance_ratio))
        yield EXPERT_IMBALANCE(worst.layer, _uneven_words(worst, len(uneven), window))


def _matters(one: LayerDigest, window_ns: int) -> bool:
    return one.cost_ns is None or one.cost_ns >= WORTH_RATIO * window_ns


def _uneven_words(one: LayerDigest, count: int, window_ns: int) -> str:
    gets = one.received_nbytes
    more = f" {count - 1} more all-to-alls are uneven, too." if count > 1 else ""
    cost = (
        ""
        if one.cost_ns is None or not window_ns
        else f" In the next all-to-all the ranks wait for it, {duration(one.cost_ns)} of a step on average"
        f" ({percent(one.cost_ns / window_ns)})."
    )
    return (
        f"The all-to-all of layer {one.layer} ({one.phase or 'in no phase'}) is uneven: the rank that gets most gets"
        f" {one.imbalance_ratio:.2f} times the mean of {size(round(sum(gets) / len(gets)))}, most often rank"
        f" {one.largest_rank}.{cost}{more} If these are tokens on their way to experts, limit what an expert takes"
        " (capacity factor), or balance the router by a loss."
    )


# Pipelines ------------------------------------------------------------------------------------------------------------


ONE_STAGE_A_RANK: Final = ("ScheduleGPipe", "Schedule1F1B")


def pipeline_findings(result: Result) -> Iterator[Finding]:
    """Name the pipelines where a slow stage, and the bubble, cost most."""
    digests = pipeline_digests(result)
    slow, bubble = slowest_stage(digests), largest_bubble(digests)
    if slow is not None and slow.slow is not None:
        yield SLOW_STAGE(_where(slow, digests), _slow_words(slow, slow.slow))
    if bubble is not None:
        yield PIPELINE_BUBBLE(_where(bubble, digests), _bubble_words(bubble))


def _where(one: PipelineDigest, digests: Sequence[PipelineDigest]) -> str:
    return f"pipeline {one.pipeline}, the worst of {len(digests)}" if len(digests) > 1 else "run"


def _slow_words(digest: PipelineDigest, slow: SlowStage) -> str:
    others = "the other" if digest.stages == 2 else "a typical stage"
    return (
        f"Stage {slow.stage} of the pipeline (rank {slow.rank}) computes {duration(slow.microbatch_ns)} for each"
        f" microbatch, {others} {duration(slow.typical_ns)}. That makes a turn {duration(slow.costs_ns)} longer"
        f" ({percent(slow.costs_ns / digest.window_ns)} of {duration(digest.window_ns)}): the other stages wait for it,"
        f" and no schedule can avoid it. Give it fewer layers, or find out why rank {slow.rank} is slow."
    )


def _bubble_words(digest: PipelineDigest) -> str:
    bubble, ideal, more = digest.bubble_ns, digest.ideal_bubble_ns, 2 * digest.microbatches
    shape = f"{counted(digest.stages, 'stage')} and {counted(digest.microbatches, 'microbatch', 'microbatches')}"
    words = (
        f"In each turn of {digest.schedule}, a rank is idle for {duration(bubble)} of {duration(digest.window_ns)}"
        f" ({percent(bubble / digest.window_ns)}), because the schedule has no work for it: with {shape} it implies"
        f" {duration(ideal)}. With {more} microbatches of half the size it would be {duration(ideal / 2)}, if they take"
        " half as long"
    )
    if digest.schedule in ONE_STAGE_A_RANK:
        return f"{words}; ScheduleInterleaved1F1B with two stages on each rank has half the bubble, too."
    return f"{words}."


# Tensor parallelism ---------------------------------------------------------------------------------------------------


COST_MIN_RATIO: Final = 0.05
"""Of the step."""
BY_NATURE: Final = (
    "No order of the program hides that: send less or faster (shard over fewer ranks or a faster link, divide the"
    " sequence as well), or overlap each with its matrix product (async tensor parallelism)."
)
BY_ORDER: Final = "Launch these earlier, or compute more between the launch and the use of the result."


def tensor_findings(result: Result, summary: Summary) -> Iterator[Finding]:
    """Name what helps, unless communication is long as ranks are late."""
    if _ranks_are_late(result):
        return
    cost, exposed = tensor_cost(result), summary.part("exposed_comm")
    if cost is None or exposed is None or not summary.window_ns:
        return
    if cost.exposed_ns >= COST_MIN_RATIO * summary.window_ns and 2 * cost.exposed_ns >= exposed.ns:
        yield TENSOR_EXPOSED("run", _exposed_words(cost, summary.window_ns))


def _exposed_words(cost: TensorCost, window_ns: int) -> str:
    module, phase = cost.worst
    exposed = (
        f"The step waits {duration(cost.exposed_ns)} ({percent(cost.exposed_ns / window_ns)}) for tensor parallelism,"
        f" longest for {module}{f' in {phase}' if phase else ''}."
    )
    nature = f" {duration(cost.by_nature_ns)} are exposed by nature: the next operator needs the result at once."
    order = f" {duration(cost.by_order_ns)} are exposed by order: what computes meanwhile is shorter than the transfer."
    parts = [(cost.by_nature_ns, nature, BY_NATURE), (cost.by_order_ns, order, BY_ORDER)]
    told = [part for part in parts if part[0] >= COST_MIN_RATIO * cost.exposed_ns]
    return exposed + "".join(f"{words} {advice}" for _, words, advice in sorted(told, key=lambda part: -part[0]))
