"""How long nothing was recorded, where clocks agree and where they do not."""

from __future__ import annotations

import time

import pytest

from ddptrace.live.run_folders import Silence

SECOND = 10**9
HOUR = 3600 * SECOND
SOON = SECOND // 2  # more than a test takes between two lines


def test_at_first_only_the_clock_of_the_records_tells() -> None:
    assert Silence().ns(time.time_ns() - HOUR, is_behind=False) == pytest.approx(HOUR, abs=SOON)
    assert Silence().ns(time.time_ns() + HOUR, is_behind=False) < SOON


@pytest.mark.parametrize("off_ns", [-HOUR, HOUR])
def test_what_comes_in_is_new_whatever_its_clock_says(off_ns: int) -> None:
    silence = Silence()
    silence.ns(time.time_ns() + off_ns, is_behind=False)
    assert silence.ns(time.time_ns() + off_ns, is_behind=False) < SOON


def test_it_grows_while_nothing_comes_in_though_the_records_clock_is_ahead() -> None:
    silence, newest = Silence(), time.time_ns() + HOUR
    first = silence.ns(newest, is_behind=False)
    time.sleep(0.05)
    assert silence.ns(newest, is_behind=False) - first >= SECOND // 20


def test_what_was_only_read_late_is_as_old_as_it_says() -> None:
    silence, long_ago = Silence(), time.time_ns() - HOUR
    silence.ns(long_ago, is_behind=True)
    for step, is_behind in enumerate((True, False), start=1):  # the last of what waited is as old as the rest
        assert silence.ns(long_ago + step, is_behind=is_behind) == pytest.approx(HOUR, abs=SOON)
    assert silence.ns(long_ago + SECOND, is_behind=False) < SOON, "this one came in meanwhile"
