"""One run on two hosts with a slow link tells what others there take, which are recorded too and not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import ddptrace
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.cli import main
from ddptrace.predictor import predictor
from tests.launch import PROGRAMS, environment

pytestmark = pytest.mark.alone

RATE = "500mbit"
CAPS = {"small": "1", "half": "6", "whole": "100", "accumulated": "6/2"}
NEAR_RATIO = 0.2
"""On a machine where other tests run; `python -m benchmarks whatif` measures it on a quiet one."""


@pytest.fixture(scope="module")
def runs(hosts_tool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """By name, all made by the same two processes."""
    folder = tmp_path_factory.mktemp("whatif")
    found = {name: folder / name for name in CAPS}
    told = [part for name, run in found.items() for part in (CAPS[name], str(run))]
    before = os.environ.get("HOSTS_PREFIX")
    os.environ["HOSTS_PREFIX"] = f"ddw{os.getpid() % 10000}"
    subprocess.run([hosts_tool, "up", "2", RATE], check=True)
    try:
        assert _train(hosts_tool, told) == [0, 0]
        yield found
    finally:
        subprocess.run([hosts_tool, "down"], check=True)
        os.environ.pop("HOSTS_PREFIX") if before is None else os.environ.update(HOSTS_PREFIX=before)


def _train(hosts_tool: Path, told: list[str]) -> list[int]:
    common = {key: value for key, value in environment().items() if key != "GLOO_SOCKET_IFNAME"}
    ranks = [
        subprocess.Popen(
            [hosts_tool, "exec", str(rank), sys.executable, str(PROGRAMS / "rests.py"), *told],
            env=common | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29813"},
        )
        for rank in range(2)
    ]
    return [rank.wait(timeout=120) for rank in ranks]


@pytest.fixture(scope="module")
def recorded(runs: dict[str, Path]) -> dict[str, Predictor]:
    return {name: predictor(run) for name, run in runs.items()}


@pytest.mark.parametrize("name", CAPS)
def test_the_recorded_step_is_replayed_from_ready_times_and_costs(recorded: dict[str, Predictor], name: str) -> None:
    print(f"{name}: {recorded[name].recorded_ns / 1e6:.1f} ms, replayed {recorded[name].replay_error:+.1%}")
    assert abs(recorded[name].replay_error) < NEAR_RATIO


@pytest.mark.parametrize(
    ("known", "asked", "setting"),
    [
        ("half", "small", Setting(caps=(1.0,))),
        ("half", "whole", Setting(caps=(100.0,))),
        ("small", "whole", Setting(caps=(100.0,))),
        ("half", "accumulated", Setting(accumulate=2)),
    ],
)
def test_a_run_tells_what_another_one_takes(
    recorded: dict[str, Predictor], known: str, asked: str, setting: Setting
) -> None:
    truth = recorded[asked].recorded_ns
    told = recorded[known].predict(asked, setting)
    assert told.step_ns is not None
    print(f"{known} tells of {asked}: {told.step_ns / 1e6:.1f} ms, measured {truth / 1e6:.1f}")
    assert told.step_ns == pytest.approx(truth, rel=NEAR_RATIO)
    assert told.buckets == len(recorded[asked].model.buckets)


def test_the_advised_buckets_are_the_smaller_ones(runs: dict[str, Path]) -> None:
    advice = ddptrace.advise(runs["whole"])
    assert advice.best.buckets is not None
    assert advice.best.buckets > 1
    assert advice.limits[0].name == "transfer"


def test_the_commands_say_it(runs: dict[str, Path]) -> None:
    said = CliRunner().invoke(main, ["whatif", str(runs["half"]), "--caps", "1", "--caps", "100", "--json"])
    assert said.exit_code == 0, said.output
    rows = json.loads(said.output)["predictions"]
    assert [row["name"] for row in rows] == ["bucket_cap_mb=1", "bucket_cap_mb=100"]
    assert rows[0]["step_ns"] < rows[1]["step_ns"]
    plain = CliRunner().invoke(main, ["advise", str(runs["whole"])])
    assert plain.exit_code == 0, plain.output
    assert "DistributedDataParallel(model, bucket_cap_mb" in plain.output


def test_the_advice_is_verified_by_a_command_that_takes_it(
    runs: dict[str, Path], hosts_tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    rank = f"{hosts_tool} exec $rank {sys.executable} {PROGRAMS / 'rests.py'} {{caps}} {{run}}"
    both = f"for rank in 0 1; do RANK=$rank WORLD_SIZE=2 MASTER_PORT=29814 {rank} & done; wait"
    said = CliRunner().invoke(main, ["advise", str(runs["whole"]), "--verify", both, "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    print(told["verified"])
    assert told["verified"]["sent_buckets"] == told["verified"]["planned_buckets"] > 1
    assert abs(told["verified"]["error_ratio"]) < NEAR_RATIO


def test_a_command_for_verify_that_takes_no_caps_is_refused(runs: dict[str, Path]) -> None:
    said = CliRunner().invoke(main, ["advise", str(runs["whole"]), "--verify", "true"])
    assert said.exit_code == 2
    assert "{caps}" in said.output


def test_a_run_without_training_is_refused_in_one_sentence(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["whatif", str(tmp_path)])
    assert said.exit_code == 1
    assert said.output.startswith("Error: ")
