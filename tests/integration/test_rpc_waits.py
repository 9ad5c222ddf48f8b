"""Where a step waits for remote calls: against the times that its callee is known to take, at least."""

from __future__ import annotations

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.render.report import page
from ddptrace.render.terminal import summary_text
from tests.programs.rpc_waits import BUSY_S, FORWARDS, REPEATED, SLEEP_S
from tests.self_launched import self_launched

pytestmark = pytest.mark.alone

SLEEP_NS, BUSY_NS = round(SLEEP_S * 1e9), round(BUSY_S * 1e9)
BACKWARDS = ("through both", "alone", "two branches", "beside")
KINDS = (*(way.__name__ for way in FORWARDS), *BACKWARDS)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("waits")
    done = self_launched("rpc_waits.py", folder)
    assert "ddptrace stopped" not in done.stderr, done.said
    return ddptrace.analyze(folder / "run")


def steps_of(result: Result, kind: str) -> list[StepRow]:
    """Without the first of the kind, into which setting up falls."""
    return [row for row in result.steps if row.step >= len(KINDS) and KINDS[row.step % len(KINDS)] == kind]


def test_an_update_by_a_distributed_optimizer_ends_a_step_like_any_other(result: Result) -> None:
    assert [(row.rank, row.step) for row in result.steps] == [(0, n) for n in range(REPEATED * len(KINDS))]
    assert {row.ended_by for row in result.steps} == {"optimizer"}
    assert all(row.optimizer_ns and row.backward_ns for row in result.steps)


@pytest.mark.parametrize("kind", ["at_once", "by_future", "by_what_follows", "by_all"])
def test_the_host_that_waits_for_a_call_does_not_compute(result: Result, kind: str) -> None:
    for row in steps_of(result, kind):
        # The other worker may have begun to sleep before this one began to wait.
        assert row.rpc_wait_ns is not None and SLEEP_NS // 2 <= row.rpc_wait_ns <= row.forward_ns
        assert row.rpc_wait_ns <= row.idle_ns and row.compute_ns <= row.window_ns - SLEEP_NS // 2


def test_the_host_waits_in_to_here_for_what_is_not_made_yet(result: Result) -> None:
    assert all(row.rpc_wait_ns and row.rpc_wait_ns > SLEEP_NS // 2 for row in steps_of(result, "by_reference"))


def test_a_call_whose_answer_came_meanwhile_is_not_waited_for(result: Result) -> None:
    for row in steps_of(result, "hidden"):
        assert row.rpc_wait_ns is not None and row.rpc_wait_ns < SLEEP_NS // 2
        assert row.compute_ns >= 5 * SLEEP_NS  # by phases: whatever the forward did


@pytest.mark.parametrize(("kind", "here"), [("through both", 2), ("alone", 1)])
def test_of_a_distributed_backward_the_others_part_is_waiting_and_this_ones_is_not(
    result: Result, kind: str, here: int
) -> None:
    """`here`: of the slow backwards, so many are this worker's own; one is the other's."""
    for row in steps_of(result, kind):
        assert row.rpc_wait_ns is not None and row.rpc_wait_ns >= SLEEP_NS
        assert row.compute_ns >= here * SLEEP_NS
        assert row.compute_ns + row.idle_ns == row.window_ns


def test_a_distributed_backward_waits_until_the_last_of_its_branches_is_back(result: Result) -> None:
    for row in steps_of(result, "two branches"):
        assert row.rpc_wait_ns is not None and row.rpc_wait_ns >= SLEEP_NS
        assert row.compute_ns <= row.window_ns - SLEEP_NS


def test_what_a_worker_computes_beside_a_remote_branch_is_no_waiting(result: Result) -> None:
    for row in steps_of(result, "beside"):
        assert row.rpc_wait_ns is not None and row.rpc_wait_ns + BUSY_NS <= row.wall_ns
        assert row.compute_ns >= BUSY_NS


def test_a_worker_that_only_serves_is_told_to_do_nothing(result: Result) -> None:
    findings = {finding.code: finding for finding in result.findings}
    assert not findings.keys() & {"no-steps", "steps-by-backward", "no-communication", "coarse-compute"}
    assert findings["only-remote"].where == "rank 1" and "call" in findings["only-remote"].message
    assert "waiting-for-remote-calls" in findings


def test_terminal_and_report_say_what_the_step_waits_for(result: Result) -> None:
    summary = summarize(result)
    assert summary.rpc_wait_ns and summary.window_ns and summary.rpc_wait_ns > 0.02 * summary.window_ns
    text, html = summary_text(result), page(result)
    assert "in remote calls" in text and "No collective was measured" in text
    assert "waits for remote calls" in html and "<h2>Remote calls</h2>" in html
    assert not any("No communication" in told for told in (text, html))
