"""`python -m benchmarks blame` with one run of each plant: the late rank is named, and what is wrong with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import blame_quota as quota
from benchmarks import hosts
from benchmarks.blame_plants import PLANTS
from tests.launch import environment, in_foreground

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "benchmarks", "blame", "--ranks", "2", "--healthy", "1"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blame")
    done = subprocess.run(
        [*COMMAND, "--runs", "1", "--steps", "60", "--out", str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "blame.json").read_text())
    return found


@pytest.mark.parametrize("plant", PLANTS)
def test_the_late_rank_is_named_first_with_the_cause_that_was_planted(plant: str, told: dict[str, Any]) -> None:
    if plant in told["left_out"]:
        pytest.skip(told["left_out"][plant])
    (run,) = (run for run in told["runs"] if run["plant"] == plant)
    if plant == "half-core" and "processors-crowded" in run["findings"]:
        pytest.skip("others use this machine's processors: its quota is not what holds a rank up")
    assert run["named"], "nobody is named"
    assert (run["named"][0]["rank"], run["named"][0]["cause"]) == (run["late"], PLANTS[plant].cause)


def test_plants_are_left_out_only_where_the_machine_refuses_them(told: dict[str, Any]) -> None:
    refused = {"link": hosts.refusal(), "half-core": quota.refusal()}
    assert told["left_out"] == {plant: why for plant, why in refused.items() if why}


def test_in_the_healthy_run_nobody_is_named(told: dict[str, Any]) -> None:
    (run,) = (run for run in told["runs"] if run["plant"] == "none")
    assert run["named"] == []


def test_every_step_of_every_rank_is_timed_and_all_but_two_are_judged(told: dict[str, Any]) -> None:
    assert [[len(times) for times in run["steps_ns"]] for run in told["runs"]] == [[60, 60]] * len(told["runs"])
    assert {(run["judged"], run["on_ratio"]) for run in told["runs"]} == {(58, 30 / 58)}


def test_page_table_and_measurements_are_written_and_runs_that_are_right_are_thrown_away(
    out: Path, told: dict[str, Any]
) -> None:
    assert (out / "blame.html").is_file() and (out / "blame.md").is_file()
    wrong = {run["name"] for run in told["runs"] if not _is_right(run)}
    assert {path.name for path in (out / "runs").iterdir()} == wrong


def _is_right(run: dict[str, Any]) -> bool:
    first = run["named"][0] if run["named"] else None
    if run["plant"] == "none":
        return first is None
    return first is not None and (first["rank"], first["cause"]) == (run["late"], PLANTS[run["plant"]].cause)


def made_by(pid: int) -> list[Path]:
    """Namespaces and groups."""
    named = list(Path("/run/netns").glob(f"ddptrace{pid}-*"))
    return named + list(Path("/sys/fs/cgroup").rglob(f"ddptrace-blame-{pid}"))


@pytest.mark.skipif(bool(hosts.refusal()), reason="network namespaces are not permitted here")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_ranks_and_removes_what_it_has_made(ending: signal.Signals, tmp_path: Path) -> None:
    command = [*COMMAND, "--runs", "1", "--plants", "link", "--steps", "10000", "--out", str(tmp_path)]
    with subprocess.Popen(
        in_foreground(command), env=environment(), start_new_session=True, stderr=subprocess.DEVNULL
    ) as bench:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*/rank-00001/records-*")):
            assert bench.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        assert made_by(bench.pid)
        os.kill(bench.pid, ending)
        assert bench.wait(30) != 0
    assert made_by(bench.pid) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(bench.pid, 0)
