"""Starts the programs of these tests, each as ranks that know the test device. The process of the tests never does, as
torch would take it for the machine's accelerator."""

from __future__ import annotations

import functools
from pathlib import Path

from tests.launch import ROOT, environment
from tests.ranks import Ranks

PROGRAMS = Path(__file__).resolve().parent / "programs"


def run_on_device(program: str, *arguments: object, ranks: int, timeout_s: float = 120) -> None:
    """Run a program on `ranks` processes. Fails the test where it fails."""
    argv = [str(PROGRAMS / program), *map(str, arguments)]
    well, said = forks().run(argv, ranks, environment(), timeout_s)
    assert well, said


@functools.cache
def forks() -> Ranks:
    return Ranks(environment(), ROOT, ["tests.device.testdev"])
