"""A few bars stand for many intervals without saying what is not so."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddptrace.analysis.intervals import clip, pairs, total, union
from ddptrace.render.step_timeline import GROWN_MAX_RATIO, shade

spans = st.lists(st.tuples(st.integers(0, 9999), st.integers(1, 40)), min_size=1, max_size=300)


def made(pieces: list[tuple[int, int]]) -> np.ndarray:
    return clip(union(pairs((begin, begin + length) for begin, length in pieces)), 0, 10_000)


@given(spans, st.integers(2, 60))
def test_the_bars_hold_about_as_much_as_is_covered(pieces: list[tuple[int, int]], most: int) -> None:
    covered = made(pieces)
    shown = shade(covered, 0, 10_000, most)
    assert len(shown.bars) <= most
    area = sum((end - begin) * ratio for begin, end, ratio in shown.bars)
    assert total(covered) - 1 <= area <= GROWN_MAX_RATIO * total(covered) + 1
    assert all(before[1] <= after[0] for before, after in zip(shown.bars, shown.bars[1:], strict=False))


def test_what_is_dense_is_drawn_as_it_is() -> None:
    shown = shade(pairs([(0, 4000), (5000, 9000)]), 0, 10_000, 100)
    assert shown.bars == [(0, 4000, 1.0), (5000, 9000, 1.0)]


def test_what_is_mostly_pauses_is_drawn_by_its_share() -> None:
    every_tenth = pairs((begin, begin + 1) for begin in range(0, 10_000, 10))
    shown = shade(every_tenth, 0, 10_000, 50)
    assert len(shown.bars) == 50
    assert {ratio for *_, ratio in shown.bars} == {0.1}
    assert np.array_equal(shown.covered, every_tenth)
