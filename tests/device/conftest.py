"""Compiles the test device before the first test that needs it, and knows on which device the tests run."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import need
from tests.device.device import HERE
from tests.device.launch import run_on_device
from tests.device.summary import Summary

RunProgram = Callable[..., None]
Found = Callable[..., None]

MEETING = "meeting.py"
FOLDER_VARIABLE = "DDPTRACE_DEVICE_SUMMARY"
FOLDER = Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER is not None:
        config.pluginmanager.register(Summary(FOLDER), "device-summary")


@pytest.fixture(scope="session")
def on_device() -> RunProgram:
    """Call `on_device(program, *arguments, ranks=N)`, as `run_on_device`, of a program that needs the test device."""
    if not HERE.has_ledger:
        pytest.skip("its program needs the test device")
    return _ready()


@pytest.fixture(scope="session")
def on_any_device() -> RunProgram:
    """The same of a program that runs on any device: it asks `tests.device.device.HERE`."""
    return _ready()


def _ready() -> RunProgram:
    from tests.device import native

    if HERE.has_ledger:
        need(native.compiler(), "a C++ compiler and Python's headers (apt-get install g++ python3-dev)")
        native.compiled()
    return _run


def _run(program: str, *arguments: object, ranks: int, timeout_s: float = 120) -> None:
    if ranks > 1 and program != MEETING and not _share(ranks):
        pytest.skip(f"{ranks} ranks do not share this GPU: see test_ranks_meet_on_the_device")
    run_on_device(program, *arguments, ranks=ranks, timeout_s=timeout_s)


@functools.cache
def _share(ranks: int) -> bool:
    """Whether so many ranks can use the device at the same time: on a GPU, NCCL may refuse it, or wait for ever."""
    if HERE.has_ledger:
        return True
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_on_device(MEETING, Path(folder) / "told.json", ranks=ranks, timeout_s=60)
        except AssertionError:
            return False
    return True


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Found:
    """Call `found(name=value)` with what a check saw, for the summary; what was said last counts."""
    said: dict[str, object] = {}
    record_property("found", said)

    def say(**facts: object) -> None:
        said.update(facts)
        print(*(f"{name}={value}" for name, value in facts.items()))

    return say
