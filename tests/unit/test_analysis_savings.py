"""Savings: of real traces, where the largest is known from the raw files, and of made ones, whose sums are by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_analysis_real_traces import analyzed

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import WORTH_RATIO, summarize
from ddptrace.findings import KINDS
from ddptrace.render.headline import headline

TRUTHS = {
    "data-bound-owlv2": ("data", 0.51),
    "data-bound-resnet50-0workers": ("data", 0.33),
    "hipfree-resnet18": ("allocate", 0.88),
    "tp8-vllm-b200": ("work", 0.81),
    "resnet50-4workers": ("work", 0.22),
    "8ranks-zero-h100": ("waiting for ranks", 0.18),
    "moe-dualpipe-deepep": ("exposed communication", 0.03),
}
"""By set: cause of the headline, and its share of the typical step or, without steps, of the device's time."""
ALL = (*TRUTHS, "dlrm-blocked-copies", "no-steps-sglang")


@pytest.mark.parametrize("name", TRUTHS)
def test_the_headline_of_a_real_trace_is_its_largest_loss(shared_traces: Path, name: str) -> None:
    first = analyzed(shared_traces / "judged" / name).savings[0]
    assert (first.cause, round(first.cost_ratio, 2)) == TRUTHS[name]


@pytest.mark.parametrize("name", ALL)
def test_the_first_advice_is_about_the_headline(shared_traces: Path, name: str) -> None:
    result = analyzed(shared_traces / "judged" / name)
    advice = [finding.code for finding in result.findings if finding.kind.is_advice]
    assert advice[0] == result.savings[0].finding
    assert headline(result, summarize(result)).first_step


@pytest.mark.parametrize("name", ALL)
def test_savings_fit_into_the_parts_of_the_step(shared_traces: Path, name: str) -> None:
    result = analyzed(shared_traces / "judged" / name)
    assert [row.cost_ns for row in result.savings] == sorted((row.cost_ns for row in result.savings), reverse=True)
    assert all(row.cost_ns == pytest.approx(row.cost_ratio * row.whole_ns, abs=1) for row in result.savings)
    assert {row.finding for row in result.savings} <= KINDS.keys()
    parts = {part.name: part.ns for part in summarize(result).parts}
    if parts:
        assert idle_ns(result) == pytest.approx(parts["idle"], rel=1e-6, abs=20)
        sent = ("exposed communication", "waiting for ranks")
        assert sum(row.cost_ns for row in result.savings if row.cause in sent) <= parts["exposed_comm"] + 2


def idle_ns(result: Result) -> int:
    """All causes of idle time of the device together."""
    return sum(row.cost_ns for row in result.savings if row.half_gap_ns is not None)


def test_what_is_below_two_percent_is_no_headline(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged" / "moe-dualpipe-deepep")
    small = [row for row in result.savings if row.cost_ratio < WORTH_RATIO]
    assert small and headline(result, summarize(result)).number == "3 %"
