"""Steps of a rank whose device was timed by events, without a profiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from analysis_records import call, ddp_call, layout, mark, rank, ready, reducer, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Call, CallEvents, DeviceEvents, Group, PhaseMark, StreamWait
from ddptrace.schema import DeviceMark, Evidence, Origin, Phase

US = 1_000
Mark = tuple[DeviceMark, int, int]  # placed by the host, and when the stream came there, in µs

STEP: list[Mark] = [
    (DeviceMark.FORWARD_BEGIN, 1_000, 1_500),
    (DeviceMark.FORWARD_END, 1_100, 3_000),
    (DeviceMark.BACKWARD_BEGIN, 1_150, 3_100),
    (DeviceMark.WAIT_BEGIN, 1_290, 7_000),
    (DeviceMark.BACKWARD_END, 1_300, 9_200),
    (DeviceMark.UPDATE_BEGIN, 1_350, 9_300),
    (DeviceMark.UPDATE_END, 1_400, 10_000),
]
"""The stream computes from 1,500 to 7,000, waits until its last bucket is over, and has 200 µs of backward left."""


def events(*marks: Mark, error_ns: int = 0) -> DeviceEvents:
    columns = np.array([(int(kind), placed * US, at * US) for kind, placed, at in marks], np.int64)
    return DeviceEvents("cuda:0", columns[:, 0].astype(np.uint8), columns[:, 1], columns[:, 2], error_ns)


def bucket(seq: int, launch: int, ready_at: int, end: int, duration: int | None = None, **fields: Any) -> Call:
    took = None if duration is None else duration * US
    timed = CallEvents(ready_at * US, end * US, took, 0)
    return ddp_call(seq, launch * US, 400, on_device=True, events=timed, **fields)


def analyzed(
    calls: list[Call],
    marks: list[Mark],
    ends: tuple[int, ...] = (1_390,),
    error_ns: int = 0,
    data: PhaseMark | None = None,
    **fields: Any,
) -> Result:
    begins = (900, *ends)
    steps = [step(k, begins[k] * US, end * US) for k, end in enumerate(ends)]
    phases = [
        mark(Phase.FORWARD, 1_000 * US, 1_100 * US),
        mark(Phase.BACKWARD, 1_150 * US, 1_300 * US, 0),
        mark(Phase.OPTIMIZER, 1_350 * US, 1_390 * US),
    ]
    phases += [] if data is None else [data]
    gradients = [ready(0, (1, 1_200 * US), (0, 1_250 * US))]
    reducers = [reducer([100, 100], layout(1, 0, (1,), (0,)))]
    one = rank(steps=steps, phases=phases, calls=calls, ready=gradients, reducers=reducers, threads=None)
    timed = {"device": "cuda:0", "device_events": events(*marks, error_ns=error_ns)} | fields
    return analyze_run(run(replace(one, **timed), world_size=1))


def test_a_step_has_its_parts_and_its_buckets_from_events() -> None:
    calls = [bucket(1, 1_200, 4_000, 6_000, 1_900), bucket(2, 1_250, 6_900, 9_000, 2_000)]
    result = analyzed(calls, STEP)
    (row,) = result.steps
    assert row.compute_ns is not None and row.exposed_comm_ns is not None and row.idle_ns is not None
    assert row.window_ns == (10_000 - 1_500) * US == row.compute_ns + row.exposed_comm_ns + row.idle_ns
    assert row.compute_ns == (7_000 - 1_500 + 200 + 800) * US  # the loss between forward and backward counts
    assert row.unsure_ns == 0  # the host was ahead all the time
    assert (row.comm_ns, row.hidden_ns, row.exposed_comm_ns) == (3_900 * US, 1_900 * US, 2_000 * US)
    assert row.evidence is Evidence.EVENT and not row.profiled
    assert [(one.hidden_ns, one.exposed_ns) for one in result.buckets] == [(1_900 * US, 0), (0, 2_000 * US)]
    assert not any(one.exec_start_inferred for one in result.collectives)
    assert "device-unseen" not in {finding.code for finding in result.findings}


def test_a_begin_is_inferred_from_launch_inputs_and_the_one_before() -> None:
    calls = [
        bucket(1, 1_200, 1_100, 4_000),  # its launch came last
        bucket(2, 1_210, 5_000, 6_000),  # its inputs
        bucket(3, 1_220, 5_100, 7_000),  # the end of the one before
    ]
    rows = [row for row in analyzed(calls, STEP).collectives if row.part == 0]
    assert [(row.exec_start_at_ns or 0) // US for row in rows] == [1_200, 5_000, 6_000]
    assert all(row.exec_start_inferred and row.evidence is Evidence.EVENT for row in rows)


def test_a_collective_is_over_when_the_next_one_on_its_stream_begins() -> None:
    """The stream that waits for it went on late."""
    first, second = analyzed(
        [bucket(1, 1_200, 4_000, 6_500, 1_000), bucket(2, 1_250, 4_100, 8_000, 2_000)], STEP
    ).collectives
    assert (first.exec_start_at_ns, first.exec_end_at_ns) == (5_000 * US, 6_000 * US)
    assert (second.exec_start_at_ns, second.exec_end_at_ns) == (6_000 * US, 8_000 * US)


def test_a_bucket_is_over_when_its_backward_is() -> None:
    """Which has waited for it, on the compute stream; the stream of ours went on later."""
    known, inferred = (analyzed([bucket(1, 1_200, 4_000, 9_700, took)], STEP).collectives[0] for took in (1_000, None))
    assert (known.exec_start_at_ns, known.exec_end_at_ns) == (8_200 * US, 9_200 * US)
    assert (inferred.exec_start_at_ns, inferred.exec_end_at_ns) == (4_000 * US, 9_200 * US)


def test_a_collective_is_over_when_a_stream_that_waits_for_it_goes_on() -> None:
    timed = CallEvents(1_700 * US, 2_900 * US, 500 * US, 0)
    waits = (StreamWait(1_750 * US, 2_300 * US, True),)
    (row,) = analyzed([call(1, 1_010 * US, on_device=True, events=timed, stream_waits=waits)], STEP).collectives
    assert (row.exec_start_at_ns, row.exec_end_at_ns) == (1_800 * US, 2_300 * US)


def test_a_stream_that_waits_for_an_event_does_not_compute() -> None:
    whole = analyzed([], STEP).steps[0]
    waits = replace(events(*STEP), waits=np.array([(2_000 * US, 2_400 * US)]))
    (row,) = analyzed([], STEP, device_events=waits).steps
    assert whole.compute_ns is not None and row.compute_ns == whole.compute_ns - 400 * US
    assert row.unsure_ns == 400 * US  # the other stream may have computed
    sent = CallEvents(2_100 * US, 2_300 * US, 200 * US, 0)
    (row,) = analyzed([call(1, 1_010 * US, on_device=True, events=sent)], STEP, device_events=waits).steps
    assert row.unsure_ns == 200 * US  # or communicated, which an event tells


def test_what_a_synchronous_call_sends_is_exposed() -> None:
    """NCCL sends it on the stream that computes, so that no stream waits for it."""
    timed = CallEvents(2_000 * US, 2_400 * US, 400 * US, 0, of_marks=True)
    (row,) = analyzed([call(1, 1_010 * US, on_device=True, is_sync=True, events=timed)], STEP).steps
    assert (row.hidden_ns, row.exposed_comm_ns, row.unsure_ns) == (0, 400 * US, 0)


def test_it_is_unsure_whether_a_stream_waits_for_what_nothing_was_seen_to_wait_for() -> None:
    timed = CallEvents(2_000 * US, 2_400 * US, 400 * US, 0)
    (row,) = analyzed([call(1, 1_010 * US, on_device=True, events=timed)], STEP).steps
    assert (row.hidden_ns, row.unsure_ns) == (400 * US, 400 * US)


def test_nccl_can_tell_how_long_collectives_took() -> None:
    """Where it does not, the begin of each is inferred."""
    for backend, is_told in (("cpu:gloo,cuda:nccl", True), ("testdev:testccl", False)):
        groups = (Group("0", (0, 1), backend, None),)
        result = analyzed([bucket(1, 1_200, 4_000, 6_000)], STEP, groups=groups)
        (finding,) = [one for one in result.findings if one.code == "approximate-overlap"]
        assert ("TORCH_NCCL_ENABLE_TIMING=1" in finding.message) == is_told


def test_what_was_not_timed_leaves_its_step_unknown() -> None:
    untimed = [*STEP[:3], (DeviceMark.UNTIMED, 1_200, 0), *STEP[3:]]
    (row,) = analyzed([], untimed).steps
    assert row.compute_ns is None and row.idle_ns is None
    (row,) = analyzed([ddp_call(1, 1_200 * US, 400, on_device=True)], STEP).steps
    assert row.compute_ns is None
    result = analyzed([ddp_call(1, 1_200 * US, 400, on_device=True)], STEP)
    assert "device-unseen" in {finding.code for finding in result.findings}


def test_a_step_whose_end_no_event_marks_is_unknown() -> None:
    seen, unknown = analyzed([], STEP, ends=(1_390, 2_000)).steps
    assert seen.compute_ns is not None and unknown.compute_ns is None


def test_a_wait_of_the_compute_stream_ends_a_collective_if_the_stream_stood_and_bounds_it_if_not() -> None:
    issued, later = CallEvents(1_800 * US, None, None, 0), CallEvents(2_510 * US, None, None, 0)
    waits = [(StreamWait(at * US, until * US, True),) for at, until in ((2_000, 2_500), (2_600, 2_605), (2_700, 2_800))]
    stood = call(1, 1_020 * US, on_device=True, events=issued, stream_waits=waits[0])
    passed = call(2, 1_030 * US, on_device=True, events=later, stream_waits=waits[1])
    unknown = call(3, 1_040 * US, on_device=True, stream_waits=waits[2])  # nothing tells when its inputs were ready
    result = analyzed([stood, passed, unknown], STEP)
    first, second, third = {row.seq: row for row in result.collectives}.values()  # the last part of each
    assert (first.exec_start_at_ns, first.exec_end_at_ns, first.evidence) == (1_800 * US, 2_500 * US, Evidence.EVENT)
    assert (second.exec_start_at_ns, second.exec_end_at_ns) == (2_510 * US, 2_600 * US)
    assert second.evidence is third.evidence is Evidence.HOST
    (row,) = result.steps
    waited = (500 + 5 + 100) * US  # no bucket: the wait at the end of backward is empty
    assert row.compute_ns == (10_000 - 1_500) * US - waited


def test_buffers_are_waited_for_as_soon_as_they_are_sent() -> None:
    timed = CallEvents(1_600 * US, 1_900 * US, 100 * US, 0)
    sent = call(1, 1_010 * US, op="broadcast", on_device=True, origin=Origin.BUFFERS.word, events=timed)
    (row,) = analyzed([sent], STEP).steps
    assert (row.hidden_ns, row.exposed_comm_ns) == (0, 100 * US)
    assert row.compute_ns == (10_000 - 1_500 - 300) * US


def test_work_outside_of_phases_counts_where_an_event_waits_behind_it() -> None:
    """The host puts the next forward's begin on the stream at once, or when the stream has had nothing to do."""
    for placed, unsure in ((1_500, 0), (13_000, 3_000)):
        after = [
            (DeviceMark.FORWARD_BEGIN, placed, 14_000),
            (DeviceMark.UPDATE_BEGIN, placed + 10, 15_000),
            (DeviceMark.UPDATE_END, placed + 30, 15_500),
        ]
        _, row = analyzed([], [*STEP, *after], ends=(1_390, placed + 20)).steps
        assert row.window_ns == 5_500 * US
        assert (row.compute_ns, row.unsure_ns) == ((5_500 - unsure) * US, unsure * US)


def test_what_may_be_idle_is_bounded_by_the_errors_of_the_clocks_too() -> None:
    marks = [(kind, placed, placed + 50) for kind, placed, _ in STEP]
    for error, unsure in ((0, 140), (20, 240)):
        (row,) = analyzed([], marks, error_ns=error * US).steps
        assert (row.window_ns, row.unsure_ns) == (400 * US, unsure * US)


def test_the_device_is_idle_behind_an_event_while_the_host_launches_nothing() -> None:
    """Whatever phase it is in. It fetches a batch meanwhile, or stands still."""
    dry = [(kind, placed, placed + 5) for kind, placed, _ in STEP]
    told = dry[:5] + [(kind, placed + 1_000, at + 1_000) for kind, placed, at in dry[5:]]
    still = np.array([(1_010, 1_030, 1_090), (1_400, 1_400, 2_200), (2_250, 2_290, 2_280)]) * US
    fetch = mark(Phase.DATA, 1_900 * US, 2_100 * US)
    result = analyzed([], told, ends=(2_390,), device_events=replace(events(*told), still=still), data=fetch)
    (row,) = result.steps
    idle, work = (1_090 - 1_030) + (2_200 - 1_400), (1_030 - 1_010) + (2_290 - 2_250) + 6 * 5
    assert (row.window_ns, row.unsure_ns) == (1_400 * US, (1_400 - idle - work) * US)
    assert {(one.cause, one.gaps, one.idle_ns) for one in result.idle} == {
        ("still", 2, 660 * US),
        ("data", 1, 200 * US),
    }
    assert row.compute_ns == ((1_305 - 1_005 - 60) + (2_290 - 2_250) + (2_405 - 2_350)) * US


def test_what_other_streams_do_meanwhile_is_unsure() -> None:
    """Where the compute stream waits for events of other streams, these have work that no event tells of."""
    still, waits = np.array([(1_010, 1_030, 1_090)]) * US, np.array([(2_000 * US, 2_000 * US + 1)])
    dry = [(kind, placed, placed + 5) for kind, placed, _ in STEP]
    alone, beside = (
        analyzed([], dry, device_events=replace(events(*dry), still=still, **more)).steps[0]
        for more in ({}, {"waits": waits})
    )
    assert alone.compute_ns == beside.compute_ns
    assert (alone.unsure_ns or 0) + 60 * US == beside.unsure_ns


def test_a_device_that_runs_dry_within_phases_is_told() -> None:
    dry = [(kind, placed, placed + 5) for kind, placed, _ in STEP]
    (told,) = [one for one in analyzed([], dry).findings if one.code == "device-caught-up"]
    assert "in 370 µs of the typical step (92 %) it computed or waited" in told.message
    assert "device-caught-up" not in {finding.code for finding in analyzed([], STEP).findings}


def test_on_a_device_that_others_compute_on_only_a_wait_is_sure() -> None:
    """A stream that has work may stand still there."""
    calls = [bucket(1, 1_200, 4_000, 6_000, 1_900), bucket(2, 1_250, 6_900, 9_000, 2_000)]
    alone, shared = analyzed(calls, STEP), analyzed(calls, STEP, device_ranks=(0, 1))
    waited = 2_000 * US  # of the second bucket, behind the gradients
    (one,), (other,) = alone.steps, shared.steps
    assert (one.unsure_ns, other.unsure_ns) == (0, one.window_ns - waited)
    assert (one.compute_ns, one.exposed_comm_ns) == (other.compute_ns, other.exposed_comm_ns)
    (told,) = [finding for finding in shared.findings if finding.code == "device-shared"]
    assert told.where == "ranks 0 and 1" and "in 6.50 ms of the typical step (76 %) it computed or" in told.message
    assert "device-shared" not in {finding.code for finding in alone.findings}
