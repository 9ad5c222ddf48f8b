"""Handlers of signals that wait: what the program has asked the system for beside them is there afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddptrace.capture import handlers as handlers_module
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


class Thrown(Exception):
    """What another thread raises in this one."""


def throw_within(action: Callable[[], None], at: int) -> bool:
    """Run `action`, and raise before the instruction with this number of those that it runs; return whether it came
    that far."""
    left = at

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_filename == handlers_module.__file__:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Thrown
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except Thrown:
        return True
    finally:
        sys.settrace(before)
    return left < 0


def test_a_second_call_finishes_a_release_that_another_thread_has_cut_off() -> None:
    before, cut = [signal.getsignal(number) for number in signal.valid_signals()], 0
    while True:
        handlers = WaitingHandlers()
        handlers.hold()
        was_cut = throw_within(handlers.release, cut)
        handlers.release()
        assert [signal.getsignal(number) for number in signal.valid_signals()] == before
        if not was_cut:
            break
        cut += 1
    assert cut > 100


def test_what_a_release_raises_keeps_nothing_alive_in_a_circle(came: list[int]) -> None:
    class Handed:
        pass

    handlers, handed = WaitingHandlers(), Handed()
    there = weakref.ref(handed)
    handlers.hold()
    handlers._raised.append(Thrown())

    def release(_: Handed) -> None:
        handlers.release()

    gc.disable()
    try:
        with contextlib.suppress(Thrown):
            release(handed)
        del handed
        assert there() is None
    finally:
        gc.enable()


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
