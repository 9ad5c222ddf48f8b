"""Handlers of signals that wait: what the program has asked the system for beside them is there afterwards."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptrace.capture.handlers import WaitingHandlers
from tests.launch import in_foreground


@pytest.fixture(autouse=True)
def came() -> Iterator[list[int]]:
    """Signals that have reached the program's handler of SIGUSR1."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


def held_and_released() -> None:
    handlers = WaitingHandlers()
    handlers.hold()
    handlers.release()


def action_of(number: int) -> bytes:
    """Function and flags, as Linux keeps them."""
    action = ctypes.create_string_buffer(1024)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw[:8] + action.raw[136:140]


def test_calls_that_a_signal_shall_not_interrupt_stay_uninterrupted() -> None:
    signal.siginterrupt(signal.SIGUSR1, False)
    before = action_of(signal.SIGUSR1)
    handlers = WaitingHandlers()
    handlers.hold()
    assert action_of(signal.SIGUSR1) == before
    handlers.release()
    assert action_of(signal.SIGUSR1) == before


def test_a_fault_handler_in_front_of_pythons_stays(came: list[int], tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, chain=True)
        try:
            held_and_released()
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert "most recent call first" in (tmp_path / "stacks").read_text()
    assert came == [signal.SIGUSR1]


def test_a_signal_that_came_meanwhile_is_handled_once(came: list[int]) -> None:
    handlers = WaitingHandlers()
    handlers.hold()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert came == []
    handlers.release()
    assert came == [signal.SIGUSR1]


LEFT_AT_EXIT = """
import atexit, signal
from ddptrace.capture.handlers import WaitingHandlers

handlers = WaitingHandlers()
handlers.hold()
signal.raise_signal(signal.SIGINT)
atexit.register(handlers.release)
"""


def test_they_can_be_released_where_no_python_calls() -> None:
    ended = subprocess.run(
        in_foreground([sys.executable, "-c", LEFT_AT_EXIT]), capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in ended.stderr
    assert "ValueError" not in ended.stderr
