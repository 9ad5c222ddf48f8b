"""What ddptrace gives to the libraries that people train with and track experiments with, against the real ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.summary import summarize
from ddptrace.findings import ENDED_BY_EXCEPTION
from ddptrace.integrations.summary import summary_metrics
from tests.conftest import Record, need
from tests.launch import torchrun
from tests.programs.integrations import RANKS, STEPS, TRAININGS


def need_package(package: str) -> None:
    need(importlib.util.find_spec(package), f"{package} (pip install -c constraints-frameworks.txt {package})")


@pytest.fixture(scope="module", params=TRAININGS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The library, and the folder with its runs `whole` and `failed`."""
    need_package(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    torchrun("integrations.py", folder, request.param)
    return request.param, folder


def clean(result: ddptrace.Result) -> dict[int, bool]:
    return {row.rank: row.clean for row in result.ranks}


def test_every_rank_records_the_whole_training(trained: tuple[str, Path]) -> None:
    result = ddptrace.analyze(trained[1] / "whole")
    assert clean(result) == dict.fromkeys(range(RANKS), True)
    assert {(row.rank, row.step) for row in result.steps} == {(r, s) for r in range(RANKS) for s in range(STEPS)}
    assert {row.rank for row in result.buckets} == set(range(RANKS))
    assert not [one for one in result.findings if one.kind is ENDED_BY_EXCEPTION]


def test_a_training_that_raises_leaves_a_run_that_is_whole(trained: tuple[str, Path]) -> None:
    library, folder = trained
    result = ddptrace.analyze(folder / "failed")
    assert clean(result) == dict.fromkeys(range(RANKS), True)
    told = {one.where for one in result.findings if one.kind is ENDED_BY_EXCEPTION}
    assert told == (set() if library == "transformers" else {f"rank {rank}" for rank in range(RANKS)})


@pytest.fixture(scope="module")
def result(record: Record, tmp_path_factory: pytest.TempPathFactory) -> ddptrace.Result:
    return ddptrace.analyze(record(tmp_path_factory.mktemp("tracked") / "run", "ddp.py"))


def test_the_summary_has_the_numbers_of_the_typical_step_under_their_units(result: ddptrace.Result) -> None:
    found, summary = summary_metrics(result), summarize(result)
    assert summary.typical is not None
    assert found["ddptrace/step_ms"] == summary.typical.window_ns / 1e6
    assert found["ddptrace/ranks"] == 2
    parts = [found[f"ddptrace/{part.name}_ratio"] for part in summary.parts]
    assert sum(parts) == pytest.approx(1) and len(parts) == 4
    assert all(name.startswith("ddptrace/") and isinstance(value, float) for name, value in found.items())


def test_what_was_not_measured_is_left_out_of_the_summary() -> None:
    nothing = ddptrace.Result(schema="1.0", run_id="", zero_unix_ns=0, world_size=None)
    assert summary_metrics(nothing) == {"ddptrace/ranks": 0, "ddptrace/steps": 0, "ddptrace/findings": 0}


def test_tensorboard_reads_the_summary_back(result: ddptrace.Result, tmp_path: Path) -> None:
    need_package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from ddptrace.integrations.tensorboard import log_summary

    with SummaryWriter(tmp_path) as writer:
        log_summary(result, writer, step=7)
    events = EventAccumulator(str(tmp_path)).Reload()
    read = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert read == {name: [(7, pytest.approx(value))] for name, value in summary_metrics(result).items()}


def test_mlflow_reads_the_summary_back(
    result: ddptrace.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is large, and not installed for the tests")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "tracked").as_uri())
    from ddptrace.integrations.mlflow import log_summary

    with mlflow.start_run() as run:
        log_summary(result)
    read = mlflow.MlflowClient().get_run(run.info.run_id).data
    assert read.metrics == summary_metrics(result)
    assert read.tags["ddptrace.run_id"] == result.run_id


def test_weights_and_biases_keeps_the_summary_offline(result: ddptrace.Result, tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is large, and not installed for the tests")
    from ddptrace.integrations.wandb import log_summary

    with wandb.init(project="tests", mode="offline", dir=tmp_path) as run:
        log_summary(result, run)
        read = {name: run.summary[name] for name in summary_metrics(result)}
        assert run.summary["ddptrace/run_id"] == result.run_id
    assert read == summary_metrics(result)
    assert list(tmp_path.rglob("*.wandb"))
