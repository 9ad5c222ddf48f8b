"""`ddptrace bench scale` on real ranks: one job for each number of workers, and one table of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from tests.benches import bench_that_starts_ranks

WORKERS = (1, 2)
BATCH = 4
NBYTES = 4 * 4_327_754
"""Of the convnet's float32 parameters."""
STRATEGIES = ("ddp", "bucketed")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    asked = "scale --workload convnet --cap 5 --ranks 1,2 --rounds 2 --steps 1 --warmup 1"
    assert "| reducer " in bench_that_starts_ranks(*asked.split(), out=folder).stdout
    return folder


@pytest.fixture(scope="module")
def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "scale.json").read_text())
    return found


def test_each_number_of_workers_is_measured_with_both_reducers(told: dict[str, Any]) -> None:
    assert [job["workers"] for job in told["measured"]] == list(WORKERS)
    for job in told["measured"]:
        assert tuple(job["times_ns"]) == STRATEGIES
        assert all([len(times) for times in rounds] == [1, 1] for rounds in job["times_ns"].values())
        assert job["batch_size"] == BATCH, "of one worker, whatever their number: weak scaling"
        assert job["threads_per_core"] == job["workers"] * told["measured"][0]["threads_per_core"]


def test_true_communication_stands_beside_the_stopwatch(told: dict[str, Any]) -> None:
    for job in told["measured"]:
        for true in job["traced"].values():
            assert true["hidden_ns"] + true["exposed_ns"] == true["comm_ns"]
            assert true["evidence"] == "backend"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_traced_run_has_its_workers_and_all_gradients_in_its_buckets(
    out: Path, told: dict[str, Any], strategy: str
) -> None:
    run = ddptrace.analyze(out / "runs" / f"{strategy}-2-workers")
    assert len(run.ranks) == 2
    last = max(row.step for row in run.buckets if row.step is not None)
    assert (
        sum(row.nbytes for row in run.buckets if (row.rank, row.step) == (0, last))
        == told["measured"][1]["nbytes"]
        == NBYTES
    )
    assert len(ddptrace.analyze(out / "runs" / f"{strategy}-1-workers").ranks) == 1


def test_the_sheet_has_a_row_for_each_and_the_page_its_charts(out: Path, told: dict[str, Any]) -> None:
    rows = told["sheet"]["grids"][0]["rows"]
    assert [tuple(row[:2]) for row in rows] == [(name, str(n)) for name in STRATEGIES for n in WORKERS]
    assert [row[5] for row in rows[::2]] == ["100 %", "100 %"]
    assert "Samples per second over workers" in (out / "scale.html").read_text()
