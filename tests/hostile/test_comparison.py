"""The sweep sees what a faulty tracer does to a program: each fault is planted in ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile.faults import FAULTS, VARIABLE
from tests.hostile.modes import ALWAYS_ON, PLAIN
from tests.hostile.registry import PROGRAMS, load
from tests.hostile.sweep import Rank, differences, failures, run

PROGRAM = "schedulers"
SEEN = {
    "changes_a_gradient": ("rank 0, kept:", "+gradients "),
    "prints_a_line": ("rank 0, stdout:", "+ddptrace: one update"),
    "warns_of_something": ("rank 0, stderr:", "+ddptrace: one update"),
    "draws_a_random_number": ("rank 0 leaves other random numbers", ""),
    "replaces_a_function": ("rank 0 leaves other attributes", "changed as well ['torch.zeros']"),
    "changes_the_exit_code": ("rank 0 ended with exit code 3 instead of exit code 0", ""),
}
"""How the sentence about each fault begins, and what else it says."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    return run(load()[PROGRAM], PLAIN, tmp_path_factory.mktemp("comparison") / PLAIN)


def test_a_tracer_without_a_fault_is_not_seen(plain: list[Rank], tmp_path: Path) -> None:
    traced = run(PROGRAMS[PROGRAM], ALWAYS_ON, tmp_path / "run")
    assert [*differences(plain, traced), *failures(PROGRAMS[PROGRAM], tmp_path / "run")] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_tracer_is_seen(fault: str, plain: list[Rank], tmp_path: Path) -> None:
    program = replace(PROGRAMS[PROGRAM], environ=((VARIABLE, fault),))
    found = list(differences(plain, run(program, ALWAYS_ON, tmp_path / "run")))
    begin, more = SEEN[fault]
    assert any(one.startswith(begin) and more in one for one in found), found


def test_a_tracer_that_records_nothing_is_seen(plain: list[Rank], tmp_path: Path) -> None:
    assert list(failures(PROGRAMS[PROGRAM], tmp_path)) == ["nothing was recorded"]
