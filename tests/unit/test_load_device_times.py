"""The device's clock on the run's time, by ties of both clocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddptrace.load.records.device_times import DeviceClock
from ddptrace.load.records.rank_events import Row

BEAT_NS = 2_000_000_000
PPM = 1e-6


def tie(begin: int, end: int, device_ns: int) -> Row:
    return 33, 0, 1, 1, begin, end, device_ns, 0, 0, 0, 0, 0, 0


@given(
    st.floats(-90, 90),
    st.lists(st.tuples(st.integers(500, 200_000), st.floats(0, 1)), min_size=1, max_size=12),
    st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=20),
)
def test_no_instant_is_off_by_more_than_its_stated_error(
    drift_ppm: float, brackets: list[tuple[int, float]], places: list[float]
) -> None:
    """Clocks that drift evenly, brackets of any width, and the event anywhere within each."""

    def host(device_ns: int) -> int:
        return device_ns + 12_345 + round(drift_ppm * PPM * device_ns)

    ties = []
    for nth, (width, share) in enumerate(brackets):
        begin = host(nth * BEAT_NS) - round(width * share)
        ties.append(tie(begin, begin + width, nth * BEAT_NS))
    clock = DeviceClock.of(ties)
    assert clock is not None
    at = np.array([round(place * BEAT_NS * len(brackets)) for place in places], np.int64)
    off = np.abs(clock.at(at) - np.array([host(int(one)) for one in at]))
    assert (off <= clock.error(at) + 2).all()  # of rounding


def test_a_loose_tie_between_tight_ones_is_left_out() -> None:
    ties = [tie(nth * BEAT_NS, nth * BEAT_NS + 4_000, nth * BEAT_NS + 2_000) for nth in range(5)]
    ties[2] = tie(2 * BEAT_NS, 2 * BEAT_NS + 2_000_000, 2 * BEAT_NS + 2_000)
    clock = DeviceClock.of(ties)
    assert clock is not None and len(clock.device_ns) == 4
    assert int(clock.error(np.array([2 * BEAT_NS]))[0]) <= 2_100


def test_a_clock_that_bends_says_by_how_much() -> None:
    offsets = [0, 0, 50_000, 0, 0]
    ties = [tie(nth * BEAT_NS + off, nth * BEAT_NS + off + 2_000, nth * BEAT_NS) for nth, off in enumerate(offsets)]
    clock = DeviceClock.of(ties)
    assert clock is not None
    assert int(clock.error(np.array([BEAT_NS]))[0]) >= 45_000


def test_without_a_tie_there_is_no_clock() -> None:
    assert DeviceClock.of([]) is None
