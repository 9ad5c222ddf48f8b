"""The steps of real traces, played again from launches, lengths, streams and matched collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptrace.analysis.result import Result
from ddptrace.analysis.timeline.build import Timeline, timeline_of
from ddptrace.analysis.timeline.graph import Floats, Span
from ddptrace.errors import DdptraceError
from tests.unit.test_analysis_real_traces import analyzed

OF_SEVERAL_STEPS = {
    "ddp-a100": 3, "old-format/control.json.gz": 6, "old-format/df_index_resolver.json.gz": 5, "sampled-2of128": 4,
    "judged/8ranks-zero-h100": 32, "judged/data-bound-resnet50-0workers": 6, "judged/dlrm-blocked-copies": 5,
    "judged/hipfree-resnet18": 5, "judged/resnet50-4workers": 6, "odd/bare_list_2021.json.gz": 6,
}  # fmt: skip
"""Steps of all ranks, by trace."""
OF_ONE_STEP = {"dlrm-8ranks": 8, "judged/data-bound-owlv2": 1, "judged/moe-dualpipe-deepep": 1}
GRAPHS = "judged/dlrm-blocked-copies"
"""It lacks kernels of CUDA graphs, so that delays are kept as they were."""


def played_beside_recorded(timeline: Timeline, ns: Floats) -> list[float]:
    """By step and rank: its time as played, to what was recorded."""
    at = timeline.graph.played(ns)
    return [float(at[step.instant] - at[step.before]) / step.row.window_ns for step in timeline.steps]


def with_short_delays(timeline: Timeline) -> Floats:
    """With no delay longer than a launch usually takes to reach the device."""
    graph = timeline.graph
    return np.where(graph.span == Span.DELAY, np.minimum(graph.ns, 5_000), graph.ns)


@pytest.mark.parametrize(("trace", "steps"), [*OF_SEVERAL_STEPS.items(), *OF_ONE_STEP.items()])
def test_every_step_played_again_takes_what_was_recorded(trace: str, steps: int, shared_traces: Path) -> None:
    timeline = timeline_of(analyzed(shared_traces / trace))
    ratios = played_beside_recorded(timeline, timeline.graph.ns)
    assert len(ratios) == steps
    assert all(abs(ratio - 1) < 0.02 for ratio in ratios)


@pytest.mark.parametrize("trace", [trace for trace in (*OF_SEVERAL_STEPS, *OF_ONE_STEP) if trace != GRAPHS])
def test_a_step_follows_from_launches_lengths_and_waits_and_not_from_delays(trace: str, shared_traces: Path) -> None:
    """Work of which nothing tells what it waited for begins as soon as it may."""
    timeline = timeline_of(analyzed(shared_traces / trace))
    assert all(abs(ratio - 1) < 0.02 for ratio in played_beside_recorded(timeline, with_short_delays(timeline)))


def test_where_a_file_lacks_kernels_of_graphs_delays_are_kept_and_that_is_told(shared_traces: Path) -> None:
    timeline = timeline_of(analyzed(shared_traces / GRAPHS))
    assert timeline.lacks_work
    assert min(played_beside_recorded(timeline, with_short_delays(timeline))) < 0.7


@pytest.mark.parametrize(("trace", "meetings"), [("dlrm-8ranks", 8), ("judged/8ranks-zero-h100", 56), ("ddp-a100", 0)])
def test_ranks_meet_in_all_collectives_that_are_matched(trace: str, meetings: int, shared_traces: Path) -> None:
    assert timeline_of(analyzed(shared_traces / trace)).meetings == meetings


def test_what_one_rank_loses_the_others_wait_for(shared_traces: Path) -> None:
    """If the kernels of rank 1 take twice as long, the steps of all ranks are longer."""
    result = analyzed(shared_traces / "judged/8ranks-zero-h100")
    timeline = timeline_of(result)
    graph = timeline.graph
    slower = graph.ns * np.where((graph.rank == 1) & (graph.span == Span.COMPUTE), 2.0, 1.0)
    before, after = (played_beside_recorded(timeline, ns) for ns in (graph.ns, slower))
    longer = {step.row.rank for step, was, now in zip(timeline.steps, before, after, strict=True) if now > was + 0.2}
    assert longer == set(range(8))


def test_a_result_without_a_device_has_no_time_line(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "ddp-a100")
    without: Result = replace(result, activity=())
    with pytest.raises(DdptraceError, match="--profile"):
        timeline_of(without)
