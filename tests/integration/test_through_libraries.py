"""The line of the program, and that of the library which issues the collective for it: the library lies where pip puts
one, and two real ranks train with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.tables.collectives import CollectiveRow
from tests.integration.test_origins import line
from tests.launch import PROGRAMS, command, environment, torchrun

STEPS = 3
PARAMETERS = 2


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("environment") / "lib" / "site-packages"
    shutil.copytree(PROGRAMS / "framework", path / "framework")
    return path


@pytest.fixture(scope="module")
def run(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("through") / "run"
    torchrun("through_library.py", path, packages)
    return path


@pytest.fixture(scope="module")
def rows(run: Path) -> list[CollectiveRow]:
    return [row for row in ddptrace.analyze(run).collectives if row.rank == 0 and not row.part]


def at(comment: str, function: str) -> str:
    return f"through_library.py:{line(comment, 'through_library.py')} in {function}"


def through(file: str, comment: str, function: str) -> str:
    return f"framework/{file}:{line(comment, f'framework/{file}')} in {function}"


def test_each_collective_names_the_line_of_the_program_and_the_innermost_of_the_library(
    rows: list[CollectiveRow],
) -> None:
    fit = at("fit", "main")
    a_step = [
        (at("in the program", "loss_of"), None),  # called by the library, and the program's own
        (fit, through("sync.py", "in backward", "Shared.backward")),
        *[(fit, through("sync.py", "mean", "mean"))] * PARAMETERS,
    ]
    found = [(row.site, row.through) for row in rows if row.origin == "program"]
    assert found == [*a_step * STEPS, (fit, through("loop.py", "the end", "fit"))]


def test_a_library_that_only_calls_backward_issues_nothing(rows: list[CollectiveRow]) -> None:
    forward, backward = at("sharded forward", "main"), at("sharded backward", "main")
    assert {(row.op, row.site, row.through) for row in rows if row.origin == "fsdp"} == {
        ("all_gather_into_tensor", forward, None),
        ("reduce_scatter_tensor", backward, None),
    }


def test_a_checkpoint_has_all_that_it_sends_whatever_part_of_torch_sends_it(rows: list[CollectiveRow]) -> None:
    saved = [row for row in rows if row.site == at("saved", "main")]
    assert saved and {row.origin for row in saved} == {"checkpoint"}


def test_the_module_is_told_as_ever(rows: list[CollectiveRow]) -> None:
    assert {row.module for row in rows if row.origin == "fsdp"} == {"Net"}
    assert {row.module for row in rows if row.through is not None} == {None}


def test_json_has_both_lines_in_columns_of_their_own(run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddptrace", "analyze", str(run), "--json"],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    collectives = json.loads(done.stdout)["collectives"]
    found = {(row["site"], row["through"]) for row in collectives if row["op"] == "barrier"}
    assert found == {(at("fit", "main"), through("loop.py", "the end", "fit"))}


def test_a_program_that_is_installed_has_the_librarys_line_alone(packages: Path, tmp_path: Path) -> None:
    *launcher, _ = command("")
    environ = environment()
    environ["PYTHONPATH"] += f":{packages}"
    script = packages / "framework" / "train.py"
    done = subprocess.run(
        [*launcher, str(script), str(tmp_path / "run")], env=environ, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row.site, row.through) for row in ddptrace.analyze(tmp_path / "run").collectives}
    assert found == {
        (through("sync.py", "in backward", "Shared.backward"), None),
        (through("sync.py", "mean", "mean"), None),
        (through("loop.py", "the end", "fit"), None),
    }
