"""Verdicts on ranks in real traces of devices, each by code, subject and number as the raw files have them."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest

from ddptrace.analysis.findings.waiting import device_waits
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps, summarize
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.findings import Finding
from ddptrace.render.terminal import summary_text
from ddptrace.units import duration
from tests.unit.test_analysis_real_traces import analyzed

ONE_RANK = (
    "judged/data-bound-owlv2", "judged/data-bound-resnet50-0workers", "judged/hipfree-resnet18",
    "judged/no-steps-sglang", "judged/resnet50-4workers", "judged/tp8-vllm-b200", "old-format/control.json.gz",
    "odd/triton_example.json.gz",
)  # fmt: skip


def of_code(result: Result, code: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == code]


def test_a_bucket_that_waited_for_compute_is_told_with_its_times(shared_traces: Path) -> None:
    """Bucket 1, raw: launched 156 ms before it begins, and no collective runs in the last 108 to 110 ms of that."""
    result = analyzed(shared_traces / "judged" / "dlrm-blocked-copies")
    typical = {row.step for row in measured_steps(result.steps)[0]}
    rows = [row for row in result.collectives if row.bucket == (0, 0, 1) and row.step in typical and row.part == 0]
    waits = [device_waits(result)[row.rank, row.seq] for row in rows]
    assert len(waits) == 3
    for wait in waits:
        assert 155e6 < wait.queue_ns < 157e6
        assert 108e6 < wait.free_ns < 110e6
        assert 3.5e6 < wait.others_ns < 4.7e6
        assert 25.5e6 < wait.compute_ns < 27e6
    (finding,) = of_code(result, "waited-on-device")
    assert finding.where == "reducer 0, layout 0, bucket 1"
    (exposed,) = of_code(result, "exposed-bucket")
    assert "behind earlier buckets" not in exposed.message


@pytest.mark.parametrize("folder", ["judged/8ranks-zero-h100", "ddp-a100", "dlrm-8ranks", "judged/moe-dualpipe-deepep"])
def test_a_host_that_is_ahead_of_a_busy_device_makes_nothing_wait(shared_traces: Path, folder: str) -> None:
    assert of_code(analyzed(shared_traces / folder), "waited-on-device") == []


def test_the_ranks_are_shown_by_one_clock(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "moe-dualpipe-deepep")
    (rank,) = summarize(result).ranks
    assert rank.compute_ns is not None and rank.compute_ns < rank.window_ns
    lines = summary_text(result).splitlines()
    at = lines.index("Ranks  (on the device)")
    step, *parts = map(float, lines[at + 2].replace(",", "").split()[1:5])
    assert sum(parts) <= step + 0.1


@pytest.mark.parametrize(
    ("folder", "rank", "phase", "cost_ns", "steps"),
    [("judged/8ranks-zero-h100", 1, "optimizer", 5_470_628, 4), ("dlrm-8ranks", 7, "forward", 813_250, 1)],
)
def test_the_rank_that_costs_few_steps_most_is_named(
    shared_traces: Path, folder: str, rank: int, phase: str, cost_ns: int, steps: int
) -> None:
    result = analyzed(shared_traces / folder)
    costs = [row.cost_ns for row in result.blame if row.phase == "all" and row.rank == rank]
    assert len(costs) == steps and round(fmean(costs)) == cost_ns
    (finding,) = of_code(result, "late-rank")
    assert finding.where == f"rank {rank}"
    excess = [row.excess_ns for row in result.blame if (row.rank, row.phase) == (rank, phase)]
    assert f"its {phase} phase, which takes {duration(fmean(excess))} longer than the others'" in finding.message
    assert ("in the one step recorded" if steps == 1 else f"in the {steps} steps recorded") in finding.message
    assert of_code(result, "exposed-bucket") == []


def test_broadcasts_of_buffers_are_told_with_their_cost(shared_traces: Path) -> None:
    """Raw: 38.5 to 39.3 ms from the begin of forward to the first convolution, 1.2 ms of them before the first buffer
    is packed."""
    result = analyzed(shared_traces / "ddp-a100")
    (finding,) = of_code(result, "buffer-broadcasts")
    host, idle = (float(found) for found in re.findall(r"for ([\d.]+) ms", finding.message))
    assert 37 < idle <= host < 38.5
    assert "17 % of the step" in finding.message


def test_the_rank_that_computes_longer_is_named_with_the_ratio(shared_traces: Path) -> None:
    """Raw: 136.0 against 105.2 ms of kernels that do not communicate in a step."""
    (finding,) = of_code(analyzed(shared_traces / "sampled-2of128"), "uneven-compute")
    assert finding.where == "rank 1"
    assert "1.29 times" in finding.message


@pytest.mark.parametrize("folder", ["judged/8ranks-zero-h100", "dlrm-8ranks", *ONE_RANK])
def test_ranks_that_compute_alike_or_alone_are_not_uneven(shared_traces: Path, folder: str) -> None:
    result = analyzed(shared_traces / folder)
    assert of_code(result, "uneven-compute") == of_code(result, "buffer-broadcasts") == []


@pytest.mark.parametrize("folder", ONE_RANK)
def test_one_device_that_works_alone_is_told_so_once(shared_traces: Path, folder: str) -> None:
    result = analyzed(shared_traces / folder)
    assert len(of_code(result, "no-communication")) + len(of_code(result, "single-rank")) <= 1


def test_nothing_is_told_of_gloo_where_nccl_reduces(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "8ranks-zero-h100")
    assert any(row.op.startswith("reduce_scatter") for row in result.collectives)
    assert not traffic_report(result).reduces_on_host
