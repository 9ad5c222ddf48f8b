"""Threads beside the training: whose updates are the steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.schema import Phase

STEPS = 6


def record(path: Path, loop: Callable[[], object]) -> RankRun:
    with ddptrace.trace(path):
        loop()
    (rank,) = read_run(path).ranks
    return rank


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def in_each_step(rank: RankRun, phase: Phase) -> list[int]:
    return [
        sum(mark.phase is phase and step.begin_at_ns <= mark.begin_at_ns < step.end_at_ns for mark in rank.phases)
        for step in rank.steps
    ]


class Training:
    """A model with an optimizer of its own."""

    def __init__(self) -> None:
        self.model = net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def gradients(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).pow(2).sum().backward()

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()


def run_in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return thread


@pytest.mark.parametrize("when", ["in our forward", "in our backward", "before our update", "between our steps"])
def test_a_second_model_in_another_thread_adds_no_step_and_no_phase_and_is_told(when: str, tmp_path: Path) -> None:
    first, other = Training(), Training()

    def loop() -> None:
        first.step()
        with ThreadPoolExecutor(1) as pool:
            at = {when: lambda: pool.submit(other.step).result()}
            pool.submit(other.step).result()  # from here on it is known
            first.model[1].register_forward_hook(lambda *_: at.get("in our forward", lambda: None)())  # type: ignore[index]
            first.model[0].weight.register_hook(lambda _: at.get("in our backward", lambda: None)())  # type: ignore[index]
            for _ in range(STEPS - 1):
                first.gradients()
                at.get("before our update", lambda: None)()
                first.optimizer.step()
                at.get("between our steps", lambda: None)()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert in_each_step(rank, phase)[2:] == [1] * (STEPS - 2)
    codes = [finding.code for finding in ddptrace.analyze(tmp_path / "run").findings]
    assert codes.count("another-training") == 1


def test_an_optimizer_that_steps_in_another_thread_ends_the_steps_of_the_thread_that_runs_the_model(
    tmp_path: Path,
) -> None:
    training = Training()
    here, there = (torch.optim.SGD(training.model[k].parameters(), lr=0.01) for k in (0, 2))  # type: ignore[index]

    def loop() -> None:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(STEPS):
                training.gradients()
                here.step()
                pool.submit(there.step).result()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert in_each_step(rank, Phase.BACKWARD) == [1] * STEPS
    assert in_each_step(rank, Phase.OPTIMIZER) == [2] * STEPS
    by_thread = {mark.thread for mark in rank.phases if mark.phase is Phase.OPTIMIZER}
    assert len(by_thread) == 2


def test_a_training_that_goes_from_thread_to_thread_keeps_its_steps(tmp_path: Path) -> None:
    training = Training()

    def loop() -> None:
        with ThreadPoolExecutor(1) as left, ThreadPoolExecutor(1) as right:
            for k in range(STEPS):
                (left if k % 2 else right).submit(training.step).result()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert in_each_step(rank, Phase.FORWARD) == [1] * STEPS


def test_a_training_that_begins_after_another_threads_has_ended_is_followed(tmp_path: Path) -> None:
    one, two = Training(), Training()
    rank = record(tmp_path / "run", lambda: [run_in_thread(training.step) for training in (one, two, two)])
    assert len(rank.steps) == 3


def test_replicas_that_run_in_threads_are_a_part_of_the_forward_that_started_them(tmp_path: Path) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(net() for _ in range(2))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(lambda part: part(inputs), self.parts), torch.zeros(()))

    model = Parallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loop() -> None:
        for _ in range(STEPS):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert sum(mark.phase is Phase.FORWARD for mark in rank.phases) == STEPS
