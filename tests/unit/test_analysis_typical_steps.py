"""Which steps the typical step is made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from ddptrace.analysis.summary import measured_steps, typical_steps
from ddptrace.analysis.tables.steps import StepRow
from tests.made import make_result

MS = 1_000_000


def device_steps(windows_ms: Sequence[float], walls_ms: Sequence[float], first: int = 10) -> list[StepRow]:
    """Profiled steps of one rank with these device windows and host times."""
    row = next(row for row in make_result(1, 2, 1).steps if row.step == 1)
    return [
        replace(
            row,
            step=first + k,
            window_ns=round(window * MS),
            wall_ns=round(wall * MS),
            profiled=True,
            under_profiler=True,
        )
        for k, (window, wall) in enumerate(zip(windows_ms, walls_ms, strict=True))
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_a_first_window_that_the_recording_cut_does_not_count(first: int) -> None:
    rows = device_steps((31.9, 81.9, 76.9, 83.0), (80, 80.5, 79, 81), first=1 + 9 * first)
    kept, _ = measured_steps(rows)
    assert [row.window_ns for row in kept] == [81_900_000, 76_900_000, 83_000_000]


def test_a_first_step_that_is_short_on_the_host_too_counts() -> None:
    kept, _ = measured_steps(device_steps((31.9, 81.9, 76.9), (32, 82, 77)))
    assert [row.window_ns for row in kept] == [31_900_000, 81_900_000, 76_900_000]


def test_the_middle_is_that_of_the_device_and_not_of_the_host() -> None:
    kept, _ = measured_steps(device_steps((50, 60, 70, 80), (90, 20, 10, 15)))
    assert [row.window_ns for row in kept] == [60_000_000, 70_000_000]


def host_steps(walls_ms: Sequence[float], profiled: Collection[int] = (), *, is_seen: bool = True) -> list[StepRow]:
    """Steps 1, 2, … of one rank with these host times."""
    row = next(row for row in make_result(1, 2, 1).steps if row.step == 1)
    return [
        replace(
            row,
            step=number,
            window_ns=round(wall * MS),
            wall_ns=round(wall * MS),
            profiled=number in profiled,
            under_profiler=number in profiled,
            compute_ns=row.compute_ns if is_seen or number in profiled else None,
        )
        for number, wall in enumerate(walls_ms, start=1)
    ]


def test_profiled_steps_show_how_the_typical_step_divides_and_are_none_themselves() -> None:
    rows = host_steps((100, 100, 100, 100, 120, 120), profiled=(5, 6))
    typical, population = typical_steps(rows)
    measured, how = measured_steps(rows)
    assert ([row.step for row in typical], population) == (
        [2, 3],
        "steps 2 and 3, the middle of the steps except the first, paused and profiled ones",
    )
    assert ([row.step for row in measured], how) == ([5, 6], "all profiled steps")


@pytest.mark.parametrize("profiled_ms", [70, 130])
def test_profiled_steps_of_quite_another_length_do_not_show_how_the_typical_step_divides(profiled_ms: float) -> None:
    rows = host_steps((100, 100, 100, 100, profiled_ms, profiled_ms), profiled=(5, 6))
    assert measured_steps(rows) == typical_steps(rows)


def test_where_only_profiled_steps_are_known_to_compute_they_show_it_whatever_their_length() -> None:
    rows = host_steps((100, 100, 100, 100, 190, 190), profiled=(5, 6), is_seen=False)
    assert [row.step for row in measured_steps(rows)[0]] == [5, 6]
    assert [row.step for row in typical_steps(rows)[0]] == [2, 3]


def test_a_few_steps_of_which_nothing_told_when_they_computed_are_left_out() -> None:
    """As one in which a CUDA graph was captured."""
    rows = host_steps((100,) * 8)
    untimed = [replace(row, compute_ns=None) if row.step == 5 else row for row in rows]
    typical, population = typical_steps(untimed)
    assert 5 not in {row.step for row in typical} and "first, paused and untimed" in population
    assert measured_steps(untimed) == (typical, population)
    mostly = [replace(row, compute_ns=None) if row.step > 3 else row for row in rows]
    assert "untimed" not in typical_steps(mostly)[1]


def test_profiled_steps_of_which_the_first_was_cut_are_not_called_all() -> None:
    assert measured_steps(device_steps((31.9, 81.9, 76.9), (80, 80.5, 79)))[1] == (
        "all profiled steps that the file shows whole"
    )


def test_where_all_steps_were_profiled_they_are_the_typical_ones() -> None:
    rows = host_steps((100, 90, 80), profiled=(1, 2, 3))
    assert measured_steps(rows) == typical_steps(rows) == (rows, "all profiled steps")


def test_a_few_steps_beside_many_profiled_ones_are_not_typical() -> None:
    rows = host_steps((200, *(100,) * 8), profiled=range(2, 10))
    assert {row.step for row in typical_steps(rows)[0]} == {4, 5, 6, 7}


@pytest.mark.parametrize(("window_ms", "shown_by"), [(100, [16, 17, 18]), (50, [12, 13, 14])])
def test_steps_of_a_device_are_as_long_as_it_worked_on_them_and_not_as_its_host(
    window_ms: float, shown_by: list[int]
) -> None:
    rows = device_steps((window_ms,) * 5 + (100, 100, 100), (50, 55, 60, 65, 70, 101, 101, 101), first=11)
    by_events = [replace(row, profiled=False, under_profiler=False, unsure_ns=0) for row in rows[:5]]
    measured, _ = measured_steps(by_events + rows[5:])
    assert [row.step for row in measured] == shown_by
