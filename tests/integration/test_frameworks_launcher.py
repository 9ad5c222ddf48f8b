"""What Lightning starts its further ranks with under `ddptrace.run`: a stand-in of its launcher prints the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import environment

LAUNCHER = "fabric/strategies/launchers/subprocess_script.py"
SCRIPT = """
import json, sys
import {package}.fabric.strategies.launchers.subprocess_script as launcher
print(json.dumps([launcher._basic_subprocess_cmd(), launcher._hydra_subprocess_cmd(1), sys.argv]))
"""
STAND_IN = """
import sys
def line():
    import __main__
    start = [sys.argv[0]] if __main__.__spec__ is None else ["-m", __main__.__spec__.name]
    return [sys.executable, *start, *sys.argv[1:]]
def _basic_subprocess_cmd():
    return line()
def _hydra_subprocess_cmd(local_rank):
    return line(), "/somewhere"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("lightning", "lightning_of_old"):
        launcher = tmp_path / package / LAUNCHER
        launcher.parent.mkdir(parents=True)
        launcher.write_text(STAND_IN)
        for parent in launcher.relative_to(tmp_path).parents[:-1]:
            (tmp_path / parent / "__init__.py").touch()  # before an installed Lightning
    (tmp_path / "train.py").write_text(SCRIPT.format(package="lightning"))
    (tmp_path / "other.py").write_text(SCRIPT.format(package="lightning_of_old"))
    return tmp_path


def commands(folder: Path, *line: str) -> list[list[str]]:
    """Of the basic and the hydra launcher, without Python's own path; then the program's arguments."""
    python = [sys.executable, "-m", "ddptrace.run", *line]
    done = subprocess.run(
        python, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    basic, (hydra, where), argv = json.loads(done.stdout)
    assert where == "/somewhere"
    assert basic[0] == hydra[0] == sys.executable
    return [basic[1:], hydra[1:], argv]


@pytest.mark.parametrize(
    "options", [(), ("--overwrite", "--profile", "1,1,2,0"), ("--out", "there"), ("--overwrite", "--")]
)
def test_a_further_rank_is_started_with_the_options_and_arguments_of_the_first(
    options: tuple[str, ...], folder: Path
) -> None:
    out = str(folder / ("there" if "there" in options else "run"))
    said = [option for option in options if option != "--"]
    expected = ["-m", "ddptrace.run", *said, "--out", out, "train.py", "--out", "x", "--", "-m"]
    basic, hydra, argv = commands(folder, *options, "train.py", "--out", "x", "--", "-m")
    assert basic == hydra == expected
    assert argv == ["train.py", "--out", "x", "--", "-m"]


def test_a_further_rank_of_a_module_is_started_as_a_module(folder: Path) -> None:
    basic, _, _ = commands(folder, "-m", "train", "a")
    assert basic == ["-m", "ddptrace.run", "-m", "--out", str(folder / "run"), "-m", "train", "a"]
    again = commands(folder, *basic[2:])
    assert again[0][-3:] == ["-m", "train", "a"]


def test_a_launcher_of_another_package_is_left_as_it_is(folder: Path) -> None:
    basic, hydra, _ = commands(folder, "other.py", "a")
    assert basic == hydra == ["other.py", "a"]
