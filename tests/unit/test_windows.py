"""A trace without steps gets one window's breakdown, bar and verdict: in the table, JSON, terminal and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from foreign_files import Event, gloo, kernel, launch, nccl, op, said, write

import ddptrace
from ddptrace.analysis.findings.collectives import TRY
from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import WindowSummary, summarize
from ddptrace.analysis.tables.steps import WindowRow
from ddptrace.render.headline import headline
from ddptrace.render.report import page
from ddptrace.render.terminal import summary_text
from ddptrace.schema import Evidence, Origin

WITHOUT_STEPS = ("judged/no-steps-sglang", "judged/tp8-vllm-b200")
WITH_STEPS = ("ddp-a100", "judged/moe-dualpipe-deepep")
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


def analyzed(folder: Path, *events: Event) -> Result:
    return ddptrace.analyze(write(folder / "rank-0.json", events), jobs=1)


def summary(result: Result) -> WindowSummary:
    found = summarize_windows(result)
    assert found is not None
    return found


def adds_up(row: WindowRow) -> bool:
    return sum(getattr(row, name) for name in PARTS) == row.window_ns and row.queued_ns <= row.idle_ns


@pytest.mark.parametrize("traces", WITHOUT_STEPS)
def test_a_real_trace_without_steps_is_broken_down_to_the_nanosecond(shared_traces: Path, traces: str) -> None:
    result = ddptrace.analyze(shared_traces / traces, jobs=1)
    assert not result.steps
    [row], [rank] = result.windows, result.ranks
    assert adds_up(row) and rank.all is not None
    assert (row.window_ns, row.compute_ns, row.comm_ns, row.hidden_ns, row.idle_ns) == (
        rank.all.span_ns, rank.all.compute_ns, rank.all.comm_ns, rank.all.hidden_ns, rank.all.idle_ns,
    )  # fmt: skip
    window = result.to_json_dict()["summary"]["window"]
    assert window["window_ns"] == row.window_ns and json.dumps(window)
    assert sum(part["ns"] for part in window["parts"]) == row.window_ns


def test_the_verdict_on_a_decoding_is_idle_time_of_unknown_cause(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "no-steps-sglang", jobs=1)
    window = summary(result)
    assert round(window.window_ns / 1e6) == 474 and round(window.queued_ns / 1e6) == 463
    top = headline(result, summarize(result))
    assert (top.number, top.calm) == ("98 %", False)
    codes = {finding.code for finding in result.findings}
    assert "idle-while-queued" in codes
    assert not codes & {"blocking-copies", "launch-bound", "exposed-communication", "well-hidden"}
    shown = page(result)
    assert '<span class="number">98 %</span>' in shown and 'class="idle" style="flex:0.97' in shown
    assert "474 ms" in shown and "474 ms" in summary_text(result)


def test_the_verdict_on_inference_names_its_exposed_collective(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "tp8-vllm-b200", jobs=1)
    [finding] = [one for one in result.findings if one.code == "exposed-communication"]
    assert "2.14 ms" in finding.message and "all_reduce (tensor-parallel) with 2.12 ms" in finding.message
    assert finding.message.endswith(f"{TRY[Origin.TENSOR_PARALLEL.word]}.")
    assert headline(result, summarize(result)).number == "81 %"


@pytest.mark.parametrize("traces", WITH_STEPS)
def test_steps_are_better_than_windows(shared_traces: Path, traces: str) -> None:
    result = ddptrace.analyze(shared_traces / traces, jobs=1)
    assert summarize_windows(result) is None and result.to_json_dict()["summary"]["window"] is None
    assert all(map(adds_up, result.windows)) and len(result.windows) == 1


def test_communication_that_hides_is_said_to_be_well_hidden(tmp_path: Path) -> None:
    result = analyzed(tmp_path, launch(1, 0, 2), kernel("gemm", 1, 5, 1005), *nccl(2, 10, 20, 220))
    window = summary(result)
    assert (window.comm_ns, window.overlap_ratio, window.evidence) == (200_000, 1.0, Evidence.DEVICE)
    assert headline(result, summarize(result)).calm
    assert "well-hidden" in {finding.code for finding in result.findings}


def test_a_window_on_cpu_is_that_of_the_host(tmp_path: Path) -> None:
    result = analyzed(
        tmp_path, op("aten::mm", 0, 400), gloo(300, 700), op("aten::mm", 900, 1000), said("eval", 0, 1000)
    )
    [row] = result.windows
    assert adds_up(row) and not row.on_device
    assert (row.window_ns, row.compute_ns, row.comm_ns, row.hidden_ns, row.idle_ns) == (
        1_000_000, 500_000, 400_000, 100_000, 200_000,
    )  # fmt: skip
    assert row.evidence is Evidence.BACKEND and row.queued_ns == 0
    assert "exposed-communication" in {finding.code for finding in result.findings}
    assert headline(result, summarize(result)).number == "30 %"
