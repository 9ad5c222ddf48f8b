"""Backwards that dropped layers: the buckets that were sent are told, and none that could be another one."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from analysis_records import ddp_call, layout, mark, rank, ready, reducer, run, step
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Reducer
from ddptrace.schema import Phase

OWN, STOCK = "BucketedDataParallel", "DistributedDataParallel"
BUCKETS = (4, 5), (2, 3), (0, 1)  # of 80, 80 and 40 bytes


def made(kind: str = OWN, buckets: tuple[tuple[int, ...], ...] = BUCKETS) -> Reducer:
    return dataclasses.replace(reducer([4, 6, 9, 11, 9, 11], layout(0, 0, *buckets)), kind=kind)


def analyzed(sent: list[int], *brought: list[int], kind: str = OWN) -> Result:
    """Backwards that brought the gradients of these parameters; the last one sent all-reduces of these sizes."""
    last = 100 * (len(brought) - 1)
    return analyze_run(
        run(
            rank(
                steps=[step(0, 0, last + 100)],
                phases=[mark(Phase.BACKWARD, 100 * k, 100 * k + 90, k) for k in range(len(brought))],
                reducers=[made(kind)],
                calls=[ddp_call(k + 1, last + 20 + k, nbytes) for k, nbytes in enumerate(sent)],
                ready=[ready(k, *((index, 100 * k + 10) for index in at)) for k, at in enumerate(brought)],
            )
        )
    )


def told(result: Result) -> list[tuple[int, int]]:
    return [(row.index, row.nbytes or 0) for row in result.buckets]


def is_unknown(result: Result) -> bool:
    return "bucket-layout-unknown" in {finding.code for finding in result.findings}


def test_of_two_buckets_of_one_size_the_one_with_gradients_is_told() -> None:
    for brought, index in ([0, 1, 4, 5], 0), ([0, 1, 2, 3], 1):
        result = analyzed([80, 40], brought)
        assert told(result) == [(index, 80), (2, 40)] and not is_unknown(result)
        assert [row.parameters for row in result.buckets] == [tuple(f"p{i}" for i in BUCKETS[b]) for b in (index, 2)]


def test_a_bucket_of_which_one_layer_stays_is_sent() -> None:
    assert told(analyzed([80, 80], [5, 2])) == [(0, 80), (1, 80)]


def test_gradients_of_no_sync_are_sent_though_their_layer_is_dropped_now() -> None:
    assert told(analyzed([80, 80, 40], [4], [2, 3, 0, 1])) == [(0, 80), (1, 80), (2, 40)]
    assert told(analyzed([80, 40], [0, 4], [4, 5])) == [(0, 80), (2, 40)]


@pytest.mark.parametrize("sent", [[80], [80, 40, 40], [40, 80], [80, 44], [40]])
def test_calls_that_do_not_agree_to_the_last_are_not_guessed(sent: list[int]) -> None:
    result = analyzed(sent, [0, 1, 4, 5])
    assert not told(result) and is_unknown(result)


def test_stock_ddp_leaves_no_bucket_out_so_nothing_is_read_into_its_calls() -> None:
    result = analyzed([80, 40], [0, 1, 4, 5], kind=STOCK)
    assert not told(result) and is_unknown(result)


def test_without_ready_times_nothing_is_known() -> None:
    result = analyzed([80, 40], [])
    assert not told(result) and is_unknown(result)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, list[list[int]]]:
    """Backwards of a reducer whose layers are dropped at random, of few sizes; and the buckets that each one sent."""
    numels = draw(st.lists(st.integers(1, 2), min_size=1, max_size=6))
    edges = sorted(draw(st.sets(st.integers(1, len(numels)), max_size=4)) | {0, len(numels)})
    buckets = [tuple(range(a, b)) for a, b in itertools.pairwise(edges)]
    calls, gradients, sent, phases, used = [], [], [], [], set[int]()
    for k in range(draw(st.integers(1, 4))):
        syncs, brought = draw(st.booleans()), sorted(draw(st.sets(st.integers(0, len(numels) - 1))))
        used |= set(brought)
        gradients.append(ready(k, *((index, 100 * k + 10) for index in brought)))
        phases.append(mark(Phase.BACKWARD, 100 * k, 100 * k + 90, k))
        sent.append([at for at, members in enumerate(buckets) if syncs and used & set(members)])
        for at in sent[-1]:
            nbytes = sum(4 * numels[index] for index in buckets[at])
            calls.append(ddp_call(len(calls) + 1, 100 * k + 20 + at, nbytes))
        used = set() if sent[-1] else used
    own = dataclasses.replace(reducer(numels, layout(0, 0, *buckets)), kind=OWN)
    last = 100 * len(sent)
    return rank(steps=[step(0, 0, last)], phases=phases, reducers=[own], calls=calls, ready=gradients), sent


@settings(max_examples=100, deadline=None)
@given(runs())
def test_whatever_is_dropped_the_rows_are_what_was_sent(case: tuple[Any, list[list[int]]]) -> None:
    one, sent = case
    rows = analyze_run(run(one)).buckets
    assert [(row.backward, row.index) for row in rows] == [(k, index) for k, some in enumerate(sent) for index in some]
