"""Pipelines: a stage that the others wait for, and what the bubble of the schedule costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.pipeline.digest import (
    PipelineDigest,
    SlowStage,
    largest_bubble,
    pipeline_digests,
    slowest_stage,
)
from ddptrace.analysis.result import Result
from ddptrace.findings import PIPELINE_BUBBLE, SLOW_STAGE, Finding
from ddptrace.units import counted, duration, percent

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
