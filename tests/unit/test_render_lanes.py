"""Slices on one track nest or are apart, and none is dropped."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ddptrace.render.trace.slices import Slice, assign, lay_out, nested

instants = st.integers(-50, 50)
spans = st.lists(st.tuples(instants, instants).map(lambda pair: (min(pair), max(pair))), max_size=30)


@given(spans)
def test_spans_in_one_lane_are_apart(spans: list[tuple[int, int]]) -> None:
    spans.sort()
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for span, lane in zip(spans, assign(spans), strict=True):
        by_lane.setdefault(lane, []).append(span)
    for inside in by_lane.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(inside))


@given(spans)
def test_no_more_lanes_are_used_than_spans_overlap(spans: list[tuple[int, int]]) -> None:
    spans = sorted(span for span in spans if span[1] > span[0])
    deepest = max((sum(begin <= at < end for begin, end in spans) for at, _ in spans), default=0)
    assert len(set(assign(spans))) == deepest


@given(spans)
def test_every_slice_is_laid_out_as_it_was(spans: list[tuple[int, int]]) -> None:
    tracks = lay_out("row", [(Slice("one", "x", begin, end),) for begin, end in spans])
    assert sorted(piece[2:4] for track in tracks for piece in track.slices) == sorted(spans)


@given(st.tuples(instants, instants), spans)
def test_children_stay_inside_and_follow_each_other(outer: tuple[int, int], inner: list[tuple[int, int]]) -> None:
    begin, end = min(outer), max(outer)
    unit = nested(Slice("outer", "x", begin, end), [Slice("inner", "x", *span) for span in inner])
    at = begin
    for child in unit[1:]:
        assert at <= child.begin_at_ns <= child.end_at_ns <= end
        at = child.end_at_ns
    assert len(unit) == len(inner) + 1


def test_a_second_lane_is_named_as_such() -> None:
    units = [(Slice("a", "x", 0, 10),), (Slice("b", "x", 5, 15),), (Slice("c", "x", 10, 20),)]
    tracks = list(lay_out("buckets", units))
    assert [track.name for track in tracks] == ["buckets", "buckets · 2"]
    assert [[piece.name for piece in track.slices] for track in tracks] == [["a", "c"], ["b"]]


def test_a_slice_that_ends_before_it_begins_has_no_length() -> None:
    [track] = lay_out("row", [(Slice("back", "x", 10, 3), Slice("child", "x", 10, 3))])
    assert [piece[2:4] for piece in track.slices] == [(10, 10), (10, 10)]
