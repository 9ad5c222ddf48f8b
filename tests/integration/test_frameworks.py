"""Training loops that nobody here wrote: Lightning's, Accelerate's and Hugging Face's Trainer, unchanged."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.schema import RANGE_PREFIX, Phase, StepEnd
from tests.conftest import need
from tests.launch import PROGRAMS, as_ranks, environment, torchrun

RANKS = 2
BACKWARDS = [2, 2, 2, 1, 2, 2, 2, 1]  # of each update: two epochs of 7 batches, two an update, the last one alone
EVALUATED = {  # forwards of evaluations, two batches each, since the update before
    "lightning": [2, 0, 0, 0, 2, 0, 0, 0],  # its sanity check, then after each epoch; after the last no step follows
    "accelerate": [0, 0, 0, 0, 2, 0, 0, 0],  # after each epoch
    "trainer": [0, 0, 0, 2, 0, 0, 2, 0],  # after every third update
}
TELLING = {
    "lightning": {"_ResultMetric.compute", "Trainer.save_checkpoint"},
    "accelerate": {"Accelerator.gather_for_metrics", "synchronize_rng_state"},
    "trainer": {"Trainer.store_flos", "Accelerator.prepare_model"},
}
"""Functions of the frameworks that want something of the other ranks."""
WINDOW = "2,1,3"
UNDER_RUN = ("-m", "ddptrace.run")
WITNESS = {"allreduce_": "all_reduce", "allgather_": "all_gather", "_allgather_base_": "all_gather_into_tensor",
           "broadcast_": "broadcast", "barrier": "barrier"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trained:
    """One framework's training twice: what it left without tracing and with, what it printed, and the run."""

    framework: str
    off: list[dict[str, Any]]  # by rank
    on: list[dict[str, Any]]
    said: str
    run: Path

    def rank(self, number: int) -> RankRun:
        return read_run(self.run).ranks[number]


def ended(line: list[str]) -> str:
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def under_run(program: str, run: Path, *args: object) -> list[str]:
    """`program` recorded without a word of ddptrace in it, as a rank's arguments to Python."""
    script = str(PROGRAMS / program)
    return [*UNDER_RUN, "--out", str(run), "--profile", WINDOW, script, *map(str, args)]


def left(out: Path) -> list[dict[str, Any]]:
    return [torch.load(f"{out}-{rank}.pt") for rank in range(RANKS)]


def need_package(framework: str) -> None:
    package = "transformers" if framework == "trainer" else framework
    need(importlib.util.find_spec(package), f"{package} (pip install -c constraints-frameworks.txt {package})")


def train(framework: str, folder: Path) -> Trained:
    program, off, on, run = f"frameworks_{framework}.py", folder / "off", folder / "on", folder / "run"
    torchrun(program, off)
    has_context = framework == "accelerate"  # in the script
    said = torchrun(program, on, run) if has_context else as_ranks(under_run(program, run, on))
    return Trained(framework, left(off), left(on), said, run)


@pytest.fixture(scope="module", params=list(EVALUATED))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    need_package(request.param)
    return train(request.param, tmp_path_factory.mktemp(request.param))


def within(rank: RankRun, phase: Phase) -> list[int]:
    """How many of a phase began in each step."""
    begins = [mark.begin_at_ns for mark in rank.phases if mark.phase is phase]
    return [sum(step.begin_at_ns <= at < step.end_at_ns for at in begins) for step in rank.steps]


def test_parameters_are_the_same_bits_with_and_without_tracing(trained: Trained) -> None:
    for off, on in zip(trained.off, trained.on, strict=True):
        assert len(off["parameters"]) == len(on["parameters"]) >= 4
        assert all(torch.equal(a, b) for a, b in zip(off["parameters"], on["parameters"], strict=True))
    assert "ddptrace" not in trained.said


def test_each_update_that_the_framework_counts_is_one_step(trained: Trained) -> None:
    for number in range(RANKS):
        rank = trained.rank(number)
        assert [one["updates"] for one in trained.on] == [len(BACKWARDS)] * RANKS
        assert [step.ordinal for step in rank.steps] == list(range(len(BACKWARDS)))
        assert {step.ended_by for step in rank.steps} == {StepEnd.OPTIMIZER}
        assert within(rank, Phase.BACKWARD) == BACKWARDS


def test_every_step_is_cut_into_data_forward_backward_and_optimizer(trained: Trained) -> None:
    result = ddptrace.analyze(trained.run)
    for step in result.steps:
        rows = [row for row in result.phases if (row.rank, row.step) == (step.rank, step.step)]
        assert {"forward", "backward", "optimizer"} <= {row.phase for row in rows}
        assert rows[0].begin_at_ns == step.begin_at_ns and rows[-1].end_at_ns == step.end_at_ns
        assert all(a.end_at_ns == b.begin_at_ns for a, b in itertools.pairwise(rows))
    for number in range(RANKS):
        assert sum(within(trained.rank(number), Phase.DATA)) >= sum(BACKWARDS)


def test_forwards_of_an_evaluation_belong_to_the_step_that_follows_it(trained: Trained) -> None:
    for number in range(RANKS):
        forwards = within(trained.rank(number), Phase.FORWARD)
        assert [a - b for a, b in zip(forwards, BACKWARDS, strict=True)] == EVALUATED[trained.framework]


def test_the_buckets_of_every_step_add_up_to_the_models_gradients(trained: Trained) -> None:
    nbytes = sum(parameter.numel() * 4 for parameter in trained.off[0]["parameters"])
    result = ddptrace.analyze(trained.run)
    reduced = Counter[tuple[int, int | None]]()
    for bucket in result.buckets:
        reduced[bucket.rank, bucket.step] += bucket.nbytes
    assert reduced == {(rank, step): nbytes for rank in range(RANKS) for step in range(len(BACKWARDS))}


def test_call_sites_are_lines_of_the_program_with_a_telling_one_of_the_framework_beside_them(trained: Trained) -> None:
    calls = [call for call in trained.rank(0).calls if call.site is not None]
    assert all(call.site.startswith("frameworks_") for call in calls if call.site is not None)
    through = {call.through.partition(" in ")[2] for call in calls if call.through is not None}
    assert through >= TELLING[trained.framework]
    assert not any("Strategy." in name or name in ("gather", "sync_ddp", "broadcast", "barrier") for name in through)


@pytest.mark.parametrize("number", range(RANKS))
def test_every_collective_that_the_profiler_saw_is_in_the_record(trained: Trained, number: int) -> None:
    with gzip.open(trained.run / f"rank-{number:05d}" / "kineto-0.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    seen = Counter(WITNESS[name.removeprefix("c10d::")] for name in names if name.startswith("c10d::"))
    ids = {int(name.removeprefix(RANGE_PREFIX)) for name in names if name.startswith(RANGE_PREFIX)}
    assert Counter(call.op for call in trained.rank(number).calls if call.seq in ids) == seen
    assert seen["all_reduce"] >= 3


@pytest.fixture(scope="module")
def gan(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Started without a launcher."""
    need_package("lightning")
    folder = tmp_path_factory.mktemp("gan")
    off, on, run, script = folder / "off", folder / "on", folder / "run", str(PROGRAMS / "frameworks_lightning_gan.py")
    ended([sys.executable, script, str(off)])
    said = ended([sys.executable, *UNDER_RUN, "--out", str(run), script, str(on)])
    return Trained("lightning", left(off), left(on), said, run)


def test_the_rank_that_lightning_starts_by_itself_is_recorded_too_and_learns_the_same_bits(gan: Trained) -> None:
    test_parameters_are_the_same_bits_with_and_without_tracing(gan)
    ranks = read_run(gan.run).ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    assert len({rank.pid for rank in ranks}) == 2


def test_a_training_step_that_the_model_itself_runs_is_a_step_for_each_update_in_it(gan: Trained) -> None:
    updates = 2 * 5  # two in each of five rounds
    assert [one["updates"] for one in gan.on] == [updates] * RANKS
    for number in range(RANKS):
        rank = gan.rank(number)
        assert within(rank, Phase.BACKWARD) == within(rank, Phase.OPTIMIZER) == [1] * updates
        assert min(within(rank, Phase.FORWARD)) >= 1
