"""What a host did between its launches, and what it waited for, in work by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddptrace.analysis.timeline.graph import Span
from ddptrace.analysis.timeline.rank_window import (
    NONE,
    QUEUE_MIN,
    before_on_stream,
    host_of,
    launched_before,
    waited_for,
)
from ddptrace.load.tables import IdleCause, Work
from tests.unit.made_device import Piece, device_work
from tests.unit.made_timeline import held, host

COMPUTE, COMM, MEMORY = Work.COMPUTE, Work.COMM, Work.MEMORY
US = 1000


def test_between_calls_the_host_is_at_work() -> None:
    _, found = host([(COMPUTE, "0:7", 120, 200, 100), (COMPUTE, "0:7", 200, 300, 150)], steps=[400])
    assert found.at_ns.tolist() == [100, 110, 150, 160, 400]
    assert found.own_ns.tolist() == [0, 10, 40, 10, 240]
    assert set(found.span.tolist()) == {Span.HOST}
    assert found.launched_at.tolist() == [0, 2]
    assert found.step_ended_at.tolist() == [4]


def test_a_synchronizing_call_ends_as_the_device_does_and_what_follows_is_own_work() -> None:
    _, found = host([(COMPUTE, "0:7", 120, 900, 100)], (IdleCause.SYNCHRONIZE, 300, 930))
    waits = np.flatnonzero(found.released_by != NONE)
    assert found.at_ns[waits].tolist() == [930]
    assert found.released_by[waits].tolist() == [0]
    assert found.own_ns[waits].tolist() == [30]


def test_a_synchronizing_call_with_nothing_to_wait_for_is_own_work() -> None:
    _, found = host([(COMPUTE, "0:7", 120, 200, 100)], (IdleCause.SYNCHRONIZE, 300, 330))
    assert set(found.released_by.tolist()) == {NONE}
    assert found.own_ns.sum() == 230


def test_a_copy_that_returns_after_it_ran_waited_for_it() -> None:
    """Its launch takes 10 ns, in which it runs."""
    _, found = host([(MEMORY, "0:7", 102, 108, 100)])
    assert found.released_by.tolist() == [NONE, 0]
    assert found.own_ns.tolist() == [0, 2]


def test_an_allocator_waits_where_it_finds_the_device_idle_and_not_while_work_goes_on() -> None:
    first, second = (COMPUTE, "0:7", 120, 500, 100), (COMPUTE, "0:7", 500, 900, 150)
    _, waits = host([first, second], (IdleCause.ALLOCATE, 200, 910))
    assert waits.released_by.max() == 1
    _, works = host([first, second], (IdleCause.ALLOCATE, 200, 600))
    assert works.released_by.max() == NONE
    assert Span.ALLOCATE in works.span


def test_work_whose_launch_is_not_in_the_file_has_none() -> None:
    _, found = host([(COMM, "0:20", 100, 200, None)])
    assert found.at_ns.tolist() == [] and found.launched_at.tolist() == [NONE]


def test_a_long_launch_waits_for_the_device_where_the_queue_is_full() -> None:
    pieces: list[Piece] = [
        (COMPUTE, "0:7", 200_000 + 100 * at, 200_100 + 100 * at, 20 * at) for at in range(QUEUE_MIN + 10)
    ]
    work = device_work(pieces)
    ends = work.launch_end_at_ns.copy()
    ends[-1] = 210_050  # it takes 0.2 ms
    found = host_of(replace(work, launch_end_at_ns=ends), held(), np.empty(0, np.int64))
    assert [int(one) for one in found.released_by if one != NONE] == [99]


def test_a_short_launch_waits_for_nothing_however_much_is_queued() -> None:
    pieces: list[Piece] = [
        (COMPUTE, "0:7", 10_000 + 100 * at, 10_100 + 100 * at, 20 * at) for at in range(QUEUE_MIN + 10)
    ]
    assert host(pieces)[1].released_by.max() == NONE


def test_fetching_a_batch_is_told_apart() -> None:
    _, found = host([(COMPUTE, "0:7", 1020, 1100, 1000)], (IdleCause.DATA, 200, 900))
    by_span = {span: int(found.own_ns[found.span == span].sum()) for span in (Span.DATA, Span.HOST)}
    assert by_span == {Span.DATA: 700, Span.HOST: 110}


def test_work_that_begins_as_that_of_another_stream_ends_waited_for_it() -> None:
    work = device_work(
        [(COMPUTE, "0:7", 0, 90 * US, 0), (COMM, "0:20", 91 * US, 95 * US, 10), (COMPUTE, "0:7", 96 * US, 99 * US, 20)]
    )
    free = np.array([0, 10, 90 * US])
    assert waited_for(work, free).tolist() == [NONE, 0, 1]
    assert before_on_stream(work).tolist() == [NONE, NONE, 0]


def test_work_that_begins_at_once_waited_for_nothing() -> None:
    work = device_work([(COMPUTE, "0:7", 0, 90 * US, 0), (COMPUTE, "0:20", 92 * US, 95 * US, 91 * US)])
    assert waited_for(work, np.array([0, 91 * US])).tolist() == [NONE, NONE]


def test_communication_waits_for_what_was_launched_last_before_it() -> None:
    work = device_work([(COMPUTE, "0:7", 0, 50, 0), (COMPUTE, "0:7", 50, 90, 10), (COMM, "0:20", 100, 200, 20)])
    assert launched_before(work).tolist() == [NONE, NONE, 1]
