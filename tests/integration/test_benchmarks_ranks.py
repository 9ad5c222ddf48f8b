"""`python -m benchmarks ranks` on real ranks: recorded, replicated, analyzed in processes of their own, and judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from tests.launch import environment

STEPS = 3
NUMBERS = (2, 4, 12)
MB = 1_000_000


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    asked = f"benchmarks ranks --workload mlp --to 12,4 --steps {STEPS} --rounds 1 --out {folder}"
    done = subprocess.run(
        [sys.executable, "-m", *asked.split()],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| ranks " in done.stdout and "round 1 of 1: 12 ranks" in done.stderr
    return folder


@pytest.fixture(scope="module")
def points(out: Path) -> list[dict[str, Any]]:
    told: dict[str, Any] = json.loads((out / "ranks.json").read_text())
    found: list[dict[str, Any]] = told["measured"][0]["points"]
    return found


def test_each_number_of_ranks_is_measured_after_the_recorded_run(points: list[dict[str, Any]], out: Path) -> None:
    assert tuple(point["ranks"] for point in points) == NUMBERS
    for point in points:
        assert [len(point[name]) for name in ("cpu_s", "wall_s", "peak_nbytes")] == [1, 1, 1]
        assert point["cpu_s"][0] > 0 and point["peak_nbytes"][0] > 20 * MB
    records = [sum(file.stat().st_size for file in run.rglob("records-*.bin")) for run in folders(out)]
    assert [point["nbytes"]["records"] for point in points] == records
    # AND six times the ranks have about six times the records: group lists grow a little
    assert 6 <= records[2] / records[0] < 6.5


def folders(out: Path) -> list[Path]:
    return [out / "runs" / name for name in ("recorded", "4-ranks", "12-ranks")]


def test_the_runs_and_what_was_written_of_them_stay_to_be_looked_at(out: Path) -> None:
    for run in folders(out):
        assert {file.name for file in (run / "analysis").iterdir()} >= {"trace.json.gz", "report.html", "analysis.json"}


def test_the_recorded_steps_are_whole_and_every_collective_of_all_ranks_is_matched(out: Path) -> None:
    alone, *_, most = (ddptrace.analyze(run) for run in folders(out))
    assert len(alone.steps) == STEPS * 2 and len(most.steps) == STEPS * 12
    assert {match.ranks for match in most.matches} == {tuple(range(12))}
    assert len(most.matches) == len(alone.matches) >= STEPS
    assert len(most.collectives) == 6 * len(alone.collectives)


def test_the_sheet_says_what_it_costs_and_how_it_grows(out: Path) -> None:
    text = (out / "ranks.md").read_text()
    assert "12 ranks with " in text and "From 4 to 12 ranks, for each doubling of the records" in text
    assert (out / "ranks.html").read_text("utf-8").count("<figure>") == 2
