"""Settings, intervals and what they rest on, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddptrace.analysis.whatif.tables import Contention, Cost, Prediction, Setting, SmallCost, WhatIf
from ddptrace.units import NOT_MEASURED, counted, duration, percent, rate, signed_percent, signed_tenths, size

SIMULATED: Final = "Simulated from the recorded ranks, not measured."
DOUBT_RATIO: Final = 0.1
"""Of the recorded step. A model that misses the recorded step by more is not to be believed about other settings."""


def setting_words(setting: Setting) -> str:
    """What is otherwise: `bucket_cap_mb=5, fp16 hook`."""
    return ", ".join(_parts(setting)) or "as recorded"


def _parts(setting: Setting) -> Iterator[str]:
    if setting.caps is not None:
        yield caps_words(setting.caps)
    if setting.order != "ready":
        yield "buckets in order of definition"
    if setting.ranks is not None:
        yield counted(setting.ranks, "rank")
    if setting.bandwidth != 1:
        yield f"{setting.bandwidth:g} × the bandwidth"
    if setting.latency != 1:
        yield f"{setting.latency:g} × the latency"
    if setting.fp16:
        yield "fp16 hook"
    if setting.bf16:
        yield "bf16 hook"
    if setting.accumulate is not None:
        yield f"an update every {counted(setting.accumulate, 'backward')}"
    if setting.groups != 1:
        yield f"{setting.groups} groups in turn"
    if setting.even is not None:
        yield f"rank {setting.even} as fast as the others"
    if setting.perfect_overlap:
        yield "perfect overlap"
    if setting.free_network:
        yield "free network"
    if setting.host != 1:
        yield f"a host {setting.host:g} × as fast"
    if setting.free_data:
        yield "free data loading"
    if setting.schedule is not None:
        yield f"schedule {setting.schedule}"
    if setting.microbatches is not None:
        yield counted(setting.microbatches, "microbatch", "microbatches")
    yield from _unit_parts(setting)


def _unit_parts(setting: Setting) -> Iterator[str]:
    """What is otherwise about FSDP units, in the words of torch."""
    ahead = setting.forward_prefetch, setting.backward_prefetch
    if ahead[0] is not None and ahead[0] == ahead[1]:
        yield f"prefetch {ahead[0]}"
    else:
        yield from (
            f"{phase} prefetch {count}"
            for phase, count in zip(("forward", "backward"), ahead, strict=True)
            if count is not None
        )
    if setting.unshard_async_op is not None:
        yield f"{'asynchronous' if setting.unshard_async_op else 'synchronous'} gathers"
    if setting.reshard_after_forward is not None:
        yield f"reshard_after_forward={setting.reshard_after_forward}"
    if setting.unit_size != 1:
        yield f"units of {setting.unit_size:g}" if setting.unit_size > 1 else f"units of 1/{1 / setting.unit_size:g}"
    if setting.separate_reduce_scatter_group:
        yield "a separate group for reductions"
    if setting.reduce_dtype is not None:
        yield f"reductions in {setting.reduce_dtype}"


def caps_words(caps_mb: Sequence[float]) -> str:
    """As DDP takes them, to be pasted."""
    if len(caps_mb) == 1:
        return f"bucket_cap_mb={caps_mb[0]:g}"
    return f"bucket_cap_mb_list=[{', '.join(f'{cap:g}' for cap in caps_mb)}]"


def interval_words(prediction: Prediction) -> str:
    """`201 .. 215 ms`."""
    if prediction.low_ns is None or prediction.high_ns is None:
        return NOT_MEASURED
    return f"{prediction.low_ns / 1e6:,.1f} .. {prediction.high_ns / 1e6:,.1f}"


def gain_words(prediction: Prediction) -> str:
    """`−12 %`: what the step would change by, per backward."""
    return NOT_MEASURED if prediction.gain_ratio is None else signed_percent(-prediction.gain_ratio)


def gain_range(prediction: Prediction) -> str:
    """`−12 % (−15 % to −8 %)`: the change, and the interval in which it is expected."""
    if prediction.gain_ratio is None or prediction.gain_low_ratio is None or prediction.gain_high_ratio is None:
        return NOT_MEASURED
    low, high = signed_percent(-prediction.gain_high_ratio), signed_percent(-prediction.gain_low_ratio)
    return f"{gain_words(prediction)} ({low} to {high})"


PLAYED_FROM: Final[Mapping[str, str]] = {
    "buckets": "ready times and costs",
    "timeline": "launches, lengths of kernels and waits",
    "pipeline": "the order on each rank and the times of the stages",
    "units": "the order of units, the work between them and the cost of gathers and reductions",
}
"""By model."""


def replay_words(found: WhatIf) -> str:
    """How well the model tells what it was made of."""
    told = (
        f"Played again as it was, from {PLAYED_FROM[found.model]} alone, the step takes"
        f" {duration(round(found.recorded_ns * (1 + found.replay_error_ratio)))}; recorded were"
        f" {duration(found.recorded_ns)}"
        f" ({signed_tenths(found.replay_error_ratio)})"
    )
    if found.replayed.exposed_ns is None or not (found.recorded_exposed_ns or found.replayed.exposed_ns):
        return f"{told}."
    return (
        f"{told}. Exposed communication: {duration(found.replayed.exposed_ns)} played again,"
        f" {duration(found.recorded_exposed_ns)} in `ddptrace analyze`."
    )


def doubt_words(replay_error_ratio: float) -> str:
    """Where the model misses more of the recorded step than most plans win; empty elsewhere."""
    if abs(replay_error_ratio) < DOUBT_RATIO:
        return ""
    less = "less" if replay_error_ratio < 0 else "more"
    return (
        f"Do not rely on this: played again as it was, the step takes {percent(abs(replay_error_ratio))} {less} than"
        " recorded, so the model does not even reproduce its own input."
    )


def cost_words(cost: Cost) -> str:
    """What a collective costs, and what that is fitted to."""
    sizes = size(cost.least_nbytes)
    if cost.most_nbytes != cost.least_nbytes:
        sizes += f" to {size(cost.most_nbytes)}"
    ends = duration(cost.latency_low_ns), duration(cost.latency_high_ns)
    others = f" ({ends[0]} to {ends[1]} fit as well)" if ends[0] != ends[1] else ""
    return (
        f"An all-reduce takes {duration(cost.latency_ns)}{others} and its bytes at {rate(cost.bytes_per_s)}"
        f"{_small_words(cost.small)}: fitted to {counted(cost.sends, 'bucket')} of {sizes}, whose ends it misses by"
        f" {percent(cost.error_ratio)} of the time in which anything is sent."
    )


def _small_words(small: SmallCost | None) -> str:
    if small is None:
        return ""
    pace = "" if small.bytes_per_s is None else f" and its bytes at {rate(small.bytes_per_s)}"
    return f", one of at most {size(small.most_nbytes)} {duration(small.latency_ns)}{pace}"


def contention_words(found: Contention) -> str:
    """What communication does to compute, and how far that is known."""
    between = f"between {percent(found.low_ratio)} and {percent(found.high_ratio)}"
    return f"Compute takes {percent(found.ratio)} longer beside communication ({between}): {found.why}."
