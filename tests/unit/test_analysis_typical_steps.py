"""Which steps the typical step is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddptrace.analysis.summary import typical_steps
from ddptrace.analysis.tables.steps import StepRow
from tests.made import make_result

MS = 1_000_000


def device_steps(windows_ms: Sequence[float], walls_ms: Sequence[float], first: int = 10) -> list[StepRow]:
    """Profiled steps of one rank with these device windows and host times."""
    row = next(row for row in make_result(1, 2, 1).steps if row.step == 1)
    return [
        replace(row, step=first + k, window_ns=round(window * MS), wall_ns=round(wall * MS), profiled=True)
        for k, (window, wall) in enumerate(zip(windows_ms, walls_ms, strict=True))
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_a_first_window_that_the_recording_cut_does_not_count(first: int) -> None:
    rows = device_steps((31.9, 81.9, 76.9, 83.0), (80, 80.5, 79, 81), first=1 + 9 * first)
    kept, _ = typical_steps(rows)
    assert [row.window_ns for row in kept] == [81_900_000, 76_900_000, 83_000_000]


def test_a_first_step_that_is_short_on_the_host_too_counts() -> None:
    kept, _ = typical_steps(device_steps((31.9, 81.9, 76.9), (32, 82, 77)))
    assert [row.window_ns for row in kept] == [31_900_000, 81_900_000, 76_900_000]


def test_the_middle_is_that_of_the_device_and_not_of_the_host() -> None:
    kept, _ = typical_steps(device_steps((50, 60, 70, 80), (90, 20, 10, 15)))
    assert [row.window_ns for row in kept] == [60_000_000, 70_000_000]
