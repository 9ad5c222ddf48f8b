"""Compiles the test device before the first test that needs it, and knows on which device the tests run."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.conftest import need
from tests.device.device import HERE
from tests.device.launch import run_on_device
from tests.device.summary import Summary

RunProgram = Callable[..., None]
Found = Callable[..., None]

MEETING, MEETING_S = "meeting.py", 60
LONGEST_S = 540  # on a GPU, which is lent for minutes: what has not begun by then is skipped, and the summary says so
_met: dict[int, bool] = {}  # by number of ranks: whether they met on the device
FOLDER_VARIABLE = "DDPTRACE_DEVICE_SUMMARY"
FOLDER = Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER is not None and not hasattr(config, "workerinput"):  # of xdist, whose main process hears of all tests
        config.pluginmanager.register(Summary(FOLDER), "device-summary")


class ByProgram(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """The tests of one program stay together where several processes run tests: each program runs once."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("[")[2]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return ByProgram(config, log) if config.getvalue("dist") == "loadgroup" else None


_began = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if HERE.is_gpu and time.monotonic() - _began > LONGEST_S:
        pytest.skip(f"{LONGEST_S} s were over before it began")


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

    if not HERE.is_gpu:
        need(native.compiler(), "a C++ compiler and Python's headers (apt-get install g++ python3-dev)")
        native.compiled()
    return _run


def _run(program: str, *arguments: object, ranks: int, timeout_s: float = 120) -> None:
    if program == MEETING:
        _meet(arguments[0], ranks)
    elif ranks > 1 and not _share(ranks):
        pytest.skip(f"{ranks} ranks do not share this GPU: see test_ranks_meet_on_the_device")
    else:
        run_on_device(program, *arguments, ranks=ranks, timeout_s=timeout_s)


def _meet(told: object, ranks: int) -> None:
    """On a GPU, NCCL may refuse several ranks, or wait for ever. What so many ranks came to is remembered."""
    if any(not well for count, well in _met.items() if 1 < count <= ranks):
        pytest.fail(f"fewer than {ranks} ranks, or as many, did not meet before")
    _met[ranks] = False
    run_on_device(MEETING, told, ranks=ranks, timeout_s=MEETING_S)
    _met[ranks] = True


def _share(ranks: int) -> bool:
    """Whether so many ranks can use the device at the same time."""
    if HERE.has_ledger:
        return True
    if ranks not in _met:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(AssertionError, pytest.fail.Exception):
            _meet(Path(folder) / "told.json", ranks)
    return _met.get(ranks, False)


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Found:
    """Call `found(name=value)` with what a check saw, for the summary; what was said last counts."""
    said: dict[str, object] = {}
    record_property("found", said)

    def say(**facts: object) -> None:
        said.update(facts)
        print(*(f"{name}={value}" for name, value in facts.items()))

    return say
