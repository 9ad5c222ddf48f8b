"""Whatever a program does, under the tracer it does what it does without: exit code, bits, output, what it leaves."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.conftest import need
from tests.hostile.modes import PLAIN, PROFILED, TRACED
from tests.hostile.registry import PROGRAMS, load
from tests.hostile.sweep import Rank, differences, failures, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@functools.cache
def plain(name: str, folder: Path) -> list[Rank]:
    return run(PROGRAMS[name], PLAIN, folder / name / PLAIN)


@pytest.mark.parametrize("mode", TRACED)
@pytest.mark.parametrize("name", load())
def test_under_the_tracer_a_program_does_what_it_does_without(name: str, mode: str, folder: Path) -> None:
    program = PROGRAMS[name]
    if sys.version_info < program.python:
        pytest.skip(f"needs Python {program.python}")
    if mode == PROFILED and not program.profiled:
        pytest.skip("torch's profiler itself changes how this program ends")
    for package in program.needs:
        need(importlib.util.find_spec(package), f"{package} (pip install -c constraints-frameworks.txt {package})")
    off = plain(name, folder)
    assert tuple(rank.code for rank in off) == program.codes, "\n".join(rank.stderr[-2000:] for rank in off)
    on = run(program, mode, folder / name / mode)
    found = [*differences(off, on), *failures(program, folder / name / mode)]
    if found:  # a program that is not the same each time shows nothing
        again = run(program, PLAIN, folder / name / f"{mode}-again")
        found += [f"and a plain run differs from itself: {one}" for one in differences(off, again)]
    assert not found, "\n".join(found)
