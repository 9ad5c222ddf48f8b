"""A thread's mode of captures is relaxed while ddptrace asks for events, and is the program's again afterwards."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pytest
import torch

from ddptrace.capture.device.clock import RELAXED, CaptureGuard, _capture_guard

GLOBAL, THREAD_LOCAL = 0, 1


class Driver:
    """As CUDA's driver does it: the thread's mode and the one in memory change places."""

    def __init__(self, mode: int) -> None:
        self.mode = mode

    def exchange(self, pointer: Any) -> int:
        place = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))
        self.mode, place[0] = place[0], self.mode
        return 0


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_the_mode_is_relaxed_inside_and_put_back_after_an_error_too(mode: int) -> None:
    driver = Driver(mode)
    guard = CaptureGuard(driver.exchange)
    with contextlib.suppress(KeyError), guard():
        assert driver.mode == RELAXED
        with guard():
            assert driver.mode == RELAXED
        assert driver.mode == RELAXED
        raise KeyError
    assert driver.mode == mode


def test_a_device_without_captures_needs_no_guard() -> None:
    assert _capture_guard(torch.device("cpu")) is contextlib.nullcontext
