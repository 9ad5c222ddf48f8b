"""DDP and RPC in one program, in which whole trainings are remote calls."""

from __future__ import annotations

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.render.terminal import summary_text
from tests.programs.rpc_hybrid import LATE_S, STEPS, TRAINERS
from tests.self_launched import self_launched


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("hybrid")
    self_launched("rpc_hybrid.py", folder)
    return ddptrace.analyze(folder / "run")


def test_the_trainers_have_their_steps_and_who_serves_or_starts_them_has_none(result: Result) -> None:
    assert [(row.rank, row.step) for row in result.steps] == [(rank, n) for rank in TRAINERS for n in range(STEPS)]
    assert {row.ended_by for row in result.steps} == {"optimizer"}
    findings = {finding.code: finding for finding in result.findings}
    assert findings["only-remote"].where == "ranks 2 and 3"
    assert not findings.keys() & {"no-steps", "steps-by-backward", "no-communication"}


def test_a_module_that_lives_elsewhere_does_not_end_the_watching_of_those_here(result: Result) -> None:
    assert "surface-failed" not in {finding.code for finding in result.findings}
    gradients = [row for row in result.collectives if row.origin == "gradients"]
    assert {(row.rank, row.step) for row in gradients} == {(rank, step) for rank in TRAINERS for step in range(STEPS)}


def test_each_step_makes_the_calls_that_its_program_says(result: Result) -> None:
    """One to the embeddings, and one of the optimizer to each of the two owners of parameters."""
    for rank in TRAINERS:
        for step in range(1, STEPS):
            made = [row for row in result.rpcs if (row.rank, row.step) == (rank, step) and not row.internal]
            assert [row.callee for row in made].count("worker3") == 2 and len(made) == 3


def test_who_waits_in_a_distributed_backward_for_the_other_trainer_does_not_compute(result: Result) -> None:
    late_ns = round(LATE_S * 1e9)
    for row in result.steps:
        if row.rank == 0 and row.step:
            assert row.exposed_comm_ns > late_ns // 2 and row.compute_ns < row.window_ns - late_ns // 2
            assert row.compute_ns + row.exposed_comm_ns + row.idle_ns == row.window_ns


def test_the_terminal_tells_of_both(result: Result) -> None:
    text = summary_text(result)
    assert "all_reduce" in text and "worker0 → worker3" in text and "in remote calls" in text
