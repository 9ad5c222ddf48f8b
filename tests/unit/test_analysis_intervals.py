"""Interval arithmetic against sets of instants."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddptrace.analysis.intervals import (
    EMPTY,
    Measure,
    Pieces,
    clip,
    innermost,
    intersect,
    pairs,
    subtract,
    total,
    union,
)
from ddptrace.load.tables import Intervals

Spans = list[tuple[int, int]]

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


def instants(items: Intervals | Spans) -> set[int]:
    return {t for begin, end in np.asarray(items).reshape(-1, 2).tolist() for t in range(begin, end)}


def is_union(a: Intervals) -> bool:
    flat = a.ravel()
    return a.dtype == np.int64 and a.shape[1:] == (2,) and bool((np.diff(flat) > 0).all())


@given(spans, spans)
def test_unions_hold_exactly_the_instants_that_sets_hold(one: Spans, other: Spans) -> None:
    a, b = union(pairs(one)), union(pairs(other))
    for made, expected in [
        (a, instants(one)),
        (union(pairs(one), pairs(other)), instants(one) | instants(other)),
        (intersect(a, b), instants(a) & instants(b)),
        (subtract(a, b), instants(a) - instants(b)),
        (clip(a, 10, 20), instants(a) & set(range(10, 20))),
    ]:
        assert is_union(made)
        assert instants(made) == expected
        assert total(made) == len(expected)


def test_touching_intervals_become_one() -> None:
    assert union(pairs([(5, 9), (1, 5)])).tolist() == [[1, 9]]


def test_a_union_of_nothing_is_empty() -> None:
    assert union().shape == (0, 2)
    assert union(EMPTY, pairs([(3, 3)])).shape == (0, 2)


@given(spans, spans)
def test_a_measure_counts_the_instants_within(one: Spans, questions: Spans) -> None:
    asked = pairs(questions)
    measured = Measure(union(pairs(one))).within(asked[:, 0], asked[:, 1])
    assert measured.tolist() == [len(instants(one) & set(range(begin, end))) for begin, end in questions]


def test_instants_beyond_float_precision_stay_exact() -> None:
    big = 2**62 + 1
    assert Measure(pairs([(big, big + 3)])).within(pairs([(big, big + 1)])[:, 0], pairs([(big, big + 2)])[:, 1]) == [2]
    assert total(subtract(pairs([(0, big)]), pairs([(1, 2)]))) == big - 1


@given(spans)
def test_the_latest_begun_mark_gives_the_label(marks: Spans) -> None:
    labelled = [(begin, end, label) for label, (begin, end) in enumerate(marks)]
    pieces = innermost(labelled)
    for t in range(60):
        lasting = [mark for mark in labelled if mark[0] <= t < mark[1]]
        expected = max(lasting, key=lambda mark: (mark[0], -mark[1]), default=None)
        label = int(pieces.at(np.array([t]))[0])
        if expected is None:
            assert label == -1
        else:
            assert labelled[label][:2] == expected[:2]


@given(spans, spans)
def test_parts_of_a_split_lie_in_one_piece_and_add_up(borders: Spans, cut: Spans) -> None:
    pieces = Pieces.numbered(union(pairs(borders)))
    source, begins, ends = pieces.split(pairs(cut)[:, 0], pairs(cut)[:, 1])
    assert sorted(set(source.tolist())) == list(range(len(cut)))
    for i, (begin, end) in enumerate(cut):
        parts = list(zip(begins[source == i].tolist(), ends[source == i].tolist(), strict=True))
        assert parts[0][0] == begin
        assert parts[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        for low, high in parts:
            assert len({int(pieces.at(np.array([t]))[0]) for t in range(low, high)}) <= 1
