"""Starts the programs of these tests: each as ranks that know the test device. The process of the tests never does, as
torch would take it for the machine's accelerator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import need
from tests.launch import ROOT, environment
from tests.ranks import Ranks

PROGRAMS = Path(__file__).resolve().parent / "programs"
RunProgram = Callable[..., None]


@functools.cache
def forks() -> Ranks:
    return Ranks(environment(), ROOT, ["tests.device.testdev"])


@pytest.fixture(scope="session")
def on_device() -> RunProgram:
    """Call `on_device(program, *arguments, ranks=N)`."""
    from tests.device import native

    need(native.compiler(), "a C++ compiler and Python's headers (apt-get install g++ python3-dev)")
    native.compiled()

    def run(program: str, *arguments: object, ranks: int) -> None:
        argv = [str(PROGRAMS / program), *map(str, arguments)]
        well, said = forks().run(argv, ranks, environment(), timeout_s=120)
        assert well, said

    return run
