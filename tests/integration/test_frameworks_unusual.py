"""Trainings that are not one model, one optimizer and one loop, on two ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import Run
from ddptrace.schema import Phase
from tests.launch import torchrun

ROUNDS = 4
GENERATOR, CRITIC = 4 * (8 * 16 + 16 + 16 * 8 + 8), 4 * (8 * 32 + 32 + 32 * 8 + 8)  # bytes of their gradients
LOADED = ("loaded-here", "loaded-by-forks", "loaded-by-spawned")
ONE_MODEL = ("scaler", "reentrant", "not-reentrant", "penalized", *LOADED)


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unusual")
    said = torchrun("frameworks_unusual.py", path)
    assert "ddptrace" not in said
    return path


def marks(run: Run, phase: Phase) -> list[list[int]]:
    """By rank, how many of a phase began in each step."""
    return [
        [
            sum(mark.phase is phase and step.begin_at_ns <= mark.begin_at_ns < step.end_at_ns for mark in rank.phases)
            for step in rank.steps
        ]
        for rank in run.ranks
    ]


@pytest.mark.parametrize("case", ONE_MODEL)
def test_one_model_has_one_step_an_update_with_one_forward_and_one_backward(unusual: Path, case: str) -> None:
    run = read_run(unusual / case)
    assert [len(rank.steps) for rank in run.ranks] == [ROUNDS] * 2
    assert marks(run, Phase.FORWARD) == [[1] * ROUNDS] * 2
    assert marks(run, Phase.BACKWARD) == [[1] * ROUNDS] * 2


@pytest.mark.parametrize("case", LOADED)
def test_loading_is_data_whoever_does_it_and_workers_leave_no_rank_behind(unusual: Path, case: str) -> None:
    assert marks(read_run(unusual / case), Phase.DATA) == [[1] * ROUNDS] * 2
    assert sorted(path.name for path in (unusual / case).glob("rank-*")) == ["rank-00000", "rank-00001"]
    inside = {row.phase for row in ddptrace.analyze(unusual / case).phases if row.rank == 0 and row.step == 1}
    assert inside >= {"data", "forward", "backward", "optimizer"}


def test_a_gan_has_a_step_of_the_critic_then_one_of_the_generator_each_with_its_own_buckets(unusual: Path) -> None:
    run, result = read_run(unusual / "gan"), ddptrace.analyze(unusual / "gan")
    assert [len(rank.steps) for rank in run.ranks] == [2 * ROUNDS] * 2
    nbytes = {reducer.reducer: sum(one.nbytes for one in reducer.parameters) for reducer in run.ranks[0].reducers}
    assert sorted(nbytes.values()) == [GENERATOR, CRITIC]
    reduced = Counter[tuple[int, int | None, int]]()
    for row in result.buckets:
        reduced[row.rank, row.step, nbytes[row.reducer]] += row.nbytes
    expected = {
        (rank, step, model): model
        for rank in range(2)
        for step in range(2 * ROUNDS)
        for model in ((CRITIC,) if step % 2 == 0 else (GENERATOR,))
    }
    assert reduced == expected


def test_a_model_whose_forward_is_the_training_step_has_the_phases_of_what_it_does(unusual: Path) -> None:
    run = read_run(unusual / "whole")
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert marks(run, phase) == [[1] * 2 * ROUNDS] * 2
    (first, _) = run.ranks
    others = [mark for mark in first.phases if mark.phase is not Phase.FORWARD]
    forwards = [mark for mark in first.phases if mark.phase is Phase.FORWARD]
    assert not any(a.begin_at_ns < b.begin_at_ns < a.end_at_ns for a in forwards for b in others)


def test_a_transform_that_is_a_module_is_data_and_no_forward(unusual: Path) -> None:
    (first, _) = read_run(unusual / "loaded-here").ranks
    data = [mark for mark in first.phases if mark.phase is Phase.DATA]
    forwards = [mark for mark in first.phases if mark.phase is Phase.FORWARD]
    assert not any(a.begin_at_ns <= b.begin_at_ns < a.end_at_ns for a in data for b in forwards)


def test_what_no_surface_sees_is_listed_in_the_manifest(unusual: Path) -> None:
    told = " ".join(read_run(unusual / "gan").manifest["blind_spots"])
    for spot in ("hooks registered before the trace", "replay of a CUDA graph", "second training", "autograd.grad"):
        assert spot in told
