"""Which events carried out which call: hand-made files, and a queue whose answer is known."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.records.calls import known_over_by
from ddptrace.load.tables import Call, PhaseMark, Work
from ddptrace.load.windows.backend_ranges import BackendRange, OpenCall, assign, in_thread_order
from ddptrace.load.windows.join import Joined, join_window
from ddptrace.schema import Evidence, Phase

ZERO_UNIX_NS = 1_790_857_026_000_000_000
MAIN, GLOO_A, GLOO_B = 1, 11, 12


def call(seq: int, launch: int, **changes: Any) -> Call:
    plain = Call(
        seq=seq, op="all_reduce", group="0", ordinal=seq, launch_at_ns=launch, issued_at_ns=launch + 5, nbytes_in=4,
        nbytes_out=0, dtype="float32", thread=MAIN, is_sync=False, is_native=False, reducer=None, hook=None, waits=(),
        done_at_ns=None, exec=None,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def event(category: str, name: str, tid: Any, begin: int, end: int, **args: Any) -> dict[str, Any]:
    """Times in whole nanoseconds since the run's zero; the file's base is that zero."""
    micros = {"ts": begin / 1000, "dur": (end - begin) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "args": args} | micros


def gloo(tid: int, begin: int, end: int, op: str = "all_reduce") -> dict[str, Any]:
    return event("user_annotation", f"gloo:{op}", tid, begin, end)


def join(
    folder: Path,
    events: list[dict[str, Any]],
    calls: list[Call],
    done_threads: dict[int, int] | None = None,
    **over_by: int,
) -> Joined:
    path = folder / "kineto.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": ZERO_UNIX_NS, "traceEvents": events}))
    return join_window(
        read_kineto(path), unix_to_at=lambda at: at - ZERO_UNIX_NS, calls=calls, done_threads=done_threads or {},
        over_by={int(seq[1:]): at for seq, at in over_by.items()}, training_threads=frozenset({MAIN}),
        where="rank 0, kineto.json",
    )  # fmt: skip


def execs(joined: Joined) -> dict[int, tuple[int, int]]:
    return {seq: (one.begin_at_ns, one.end_at_ns) for seq, one in joined.execs.items()}


def test_the_range_that_holds_the_completion_stamp_on_its_thread_is_the_calls(tmp_path: Path) -> None:
    # GIVEN two calls whose ranges began in the other order, as preemption makes them
    calls = [call(1, 10, done_at_ns=380), call(2, 20, done_at_ns=290)]
    events = [gloo(GLOO_A, 60, 300), gloo(GLOO_B, 80, 400)]
    joined = join(tmp_path, events, calls, {1: GLOO_B, 2: GLOO_A})
    # THEN each has its own, which ends where the call was over, not where the callbacks in it were
    assert execs(joined) == {1: (80, 380), 2: (60, 290)}
    assert joined.execs[1].evidence is Evidence.BACKEND
    assert joined.execs[1].lane == f"thread {GLOO_B}"
    assert joined.findings == ()


def test_two_calls_that_could_be_exchanged_are_linked_to_nothing_and_said(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 300), gloo(GLOO_B, 80, 400)], [call(1, 10), call(2, 20)])
    assert joined.execs == {}
    assert [finding.code for finding in joined.findings] == ["exec-unlinked"]
    assert joined.findings[0].where == "rank 0, kineto.json"


def test_two_queued_calls_on_one_thread_are_told_apart_by_their_order(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 300), gloo(GLOO_A, 310, 400)], [call(1, 10), call(2, 20)])
    assert execs(joined) == {1: (60, 300), 2: (310, 400)}


def test_a_call_launched_after_a_range_began_is_not_its_call(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 300), gloo(GLOO_B, 80, 400)], [call(1, 10), call(2, 70)])
    assert execs(joined) == {1: (60, 300), 2: (80, 400)}


def test_a_call_that_was_over_before_a_range_began_is_not_its_call(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 100), gloo(GLOO_B, 200, 400)], [call(1, 10), call(2, 20)], s1=150)
    assert execs(joined) == {1: (60, 100), 2: (200, 400)}


def test_a_stamp_taken_on_the_launching_thread_bounds_but_does_not_link(tmp_path: Path) -> None:
    # GIVEN a call that was over before its future could be asked, so that the stamp is the launching thread's
    calls = [call(1, 10, done_at_ns=150), call(2, 160)]
    joined = join(tmp_path, [gloo(GLOO_A, 60, 100), gloo(GLOO_B, 200, 400)], calls, {1: MAIN})
    assert execs(joined) == {1: (60, 100), 2: (200, 400)}


def test_a_late_stamp_is_corrected_by_what_the_host_is_known_to_have_done(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 9000)], [call(1, 10, done_at_ns=8900)], {1: GLOO_A}, s1=2000)
    assert execs(joined) == {1: (60, 2000)}


def test_a_range_of_another_operation_is_never_the_calls(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 300, "broadcast")], [call(1, 10, done_at_ns=290)], {1: GLOO_A})
    assert joined.execs == {}
    assert [finding.code for finding in joined.findings] == ["exec-unclaimed"]


def test_a_reduce_scatter_is_an_all_reduce_to_gloo(tmp_path: Path) -> None:
    joined = join(tmp_path, [gloo(GLOO_A, 60, 300)], [call(1, 10, op="reduce_scatter_tensor")])
    assert execs(joined) == {1: (60, 300)}


def test_the_threads_of_one_group_carry_out_no_call_of_another(tmp_path: Path) -> None:
    calls = [call(1, 10, done_at_ns=40), call(2, 50), call(3, 60, group="1")]
    events = [gloo(GLOO_A, 20, 45), gloo(GLOO_A, 100, 300), gloo(GLOO_B, 90, 400)]
    joined = join(tmp_path, events, calls, {1: GLOO_A})
    assert execs(joined) == {1: (20, 40), 2: (100, 300), 3: (90, 400)}


def test_a_send_is_the_range_that_begins_inside_its_own_on_the_same_thread(tmp_path: Path) -> None:
    # GIVEN two threads that send at the same time
    own = [event("cpu_op", "ddptrace#7", MAIN, 20, 40), event("cpu_op", "ddptrace#8", 2, 21, 41)]
    events = [*own, gloo(MAIN, 30, 900, "send"), gloo(2, 31, 800, "send")]
    joined = join(tmp_path, events, [call(7, 15, op="send"), call(8, 16, op="send", thread=2)])
    assert execs(joined) == {7: (30, 900), 8: (31, 800)}


def test_calls_of_before_the_window_stand_in_nobodys_way(tmp_path: Path) -> None:
    # GIVEN calls that nobody waited for, long ago, and one of after them that was over before the window
    before = [call(1, 1), call(2, 2), call(3, 3)]
    joined = join(tmp_path, [gloo(GLOO_A, 1000, 1200)], [*before, call(4, 900)], s3=50)
    assert execs(joined) == {4: (1000, 1200)}


# A device's file, made by hand after real ones: launches on the host, kernels on stream 7, linked by correlation.
DEVICE_FILE = [
    event("cpu_op", "c10d::allreduce_", MAIN, 100, 200),
    event("cpu_op", "ddptrace#5", MAIN, 110, 190),
    event("cuda_runtime", "cudaLaunchKernelExC", MAIN, 120, 130, correlation=50),
    event("cuda_driver", "cuLaunchKernelEx", MAIN, 140, 150, correlation=51),
    event("cuda_runtime", "cudaLaunchKernel", MAIN, 160, 170, correlation=52),
    event("cuda_runtime", "cudaLaunchKernel", MAIN, 300, 310, correlation=53),
    event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 500, 700, correlation=50, stream=20),
    event("kernel", "own_reduce", 20, 720, 800, correlation=51, stream=20)
    | {"args": {"correlation": 51, "Collective name": "x"}},
    event("kernel", "copy_kernel", 7, 480, 520, correlation=52),
    event("kernel", "gemm", 7, 510, 900, correlation=53),
    event("kernel", "ncclDevKernel_Broadcast_RING_LL", 20, 40, 60, correlation=9),
    event("cuda_runtime", "cudaLaunchKernelExC", MAIN, 330, 340, correlation=55),
    event("kernel", "ncclDevKernel_AllGather_RING_LL", 20, 910, 940, correlation=55),
    event("gpu_memcpy", "Memcpy HtoD", 7, 950, 990, correlation=54),
    event("cpu_op", "aten::mm", MAIN, 290, 320),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 20, "args": {"name": "stream 20"}},
]


def test_on_a_device_the_exec_is_the_hull_of_the_communication_kernels_launched_inside_the_call(tmp_path: Path) -> None:
    joined = join(tmp_path, DEVICE_FILE, [call(5, 105, nbytes_in=1 << 20)])
    (found,) = joined.execs.values()
    assert (found.begin_at_ns, found.end_at_ns, found.evidence) == (500, 800, Evidence.DEVICE)
    assert (found.name, found.lane) == ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "stream 20")
    assert joined.on_device
    assert joined.compute.tolist() == [[480, 900]]
    assert joined.memory.tolist() == [[950, 990]]
    assert joined.device is not None
    kinds = [Work.COMM, Work.COMPUTE, Work.COMM, Work.COMPUTE, Work.COMM, Work.COMM, Work.MEMORY]
    assert joined.device.kind.tolist() == kinds
    assert joined.device.launch_begin_at_ns.tolist() == [0, 160, 120, 300, 140, 330, 0]
    assert joined.unclaimed is not None
    assert joined.device.begin_at_ns[joined.unclaimed].tolist() == [40, 910]
    (finding,) = joined.findings  # the kernel of a launch before the window may be anybody's
    assert (finding.code, finding.severity) == ("exec-unclaimed", "info")
    assert finding.message.startswith(
        "1 communication kernel belongs to no recorded call: in profiled steps they count"
    )


def test_a_window_without_events_is_said(tmp_path: Path) -> None:
    joined = join(tmp_path, [], [call(1, 10)])
    assert (joined.execs, len(joined.compute), joined.on_device, joined.device) == ({}, 0, False, None)
    assert [finding.code for finding in joined.findings] == ["window-empty"]


def test_a_native_gradient_reduction_is_over_by_the_end_of_its_backward_and_a_call_by_its_wait() -> None:
    native = {"is_native": True, "reducer": 0}
    calls = [
        call(1, 10, **native), call(2, 20, waits=((30, 40), (35, 90))), call(3, 30, dtype="int32", **native),
        call(4, 40), call(5, 300, **native), call(6, 50, waits=((60, 61),), on_device=True, **native),
    ]  # fmt: skip
    phases = [PhaseMark(Phase.BACKWARD, 5, 100, MAIN, 0), PhaseMark(Phase.FORWARD, 0, 500, MAIN, None)]
    assert known_over_by(calls, phases) == {1: 100, 2: 40}


def open_call(seq: int, launch: int, over: float = math.inf) -> OpenCall:
    return OpenCall(seq, "all_reduce", "0", launch, over, None)


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[OpenCall], list[BackendRange]]:
    """One group's queue, served by two threads in order; each stamps its begin some time after it took the call."""
    launch, calls, ranges = 0, [], []
    free = {GLOO_A: 0, GLOO_B: 0}
    taken = 0
    for seq in range(draw(st.integers(1, 7))):
        launch += draw(st.integers(1, 40))
        lane = min(free, key=lambda lane: (max(free[lane], launch), lane))
        taken = max(taken, free[lane], launch)
        begin = taken + draw(st.sampled_from([0, 1, 2, 30]))
        end = begin + draw(st.integers(1, 60))
        free[lane] = end
        over = end + draw(st.integers(0, 50)) if draw(st.booleans()) else math.inf
        calls.append(open_call(seq, launch, over))
        ranges.append((begin, end, seq, "gloo:all_reduce", lane))
    return calls, in_thread_order(ranges)


@settings(max_examples=500, deadline=None)
@given(queues())
def test_what_is_called_certain_in_a_queue_is_true(queue: tuple[list[OpenCall], list[BackendRange]]) -> None:
    calls, ranges = queue  # the event of each range is the seq of its call
    certain, doubtful = assign(calls, ranges, {})
    assert all(one.event == seq for seq, one in certain.items())
    assert sorted([*certain, *doubtful]) == [call.seq for call in calls]


@pytest.mark.parametrize("missing", [0, 1])
def test_where_a_range_is_missing_nothing_is_guessed(missing: int) -> None:
    ranges = in_thread_order([(60, 300, 0, "gloo:all_reduce", GLOO_A), (310, 400, 1, "gloo:all_reduce", GLOO_A)])
    del ranges[missing]
    assert assign([open_call(1, 10), open_call(2, 20)], ranges, {}) == ({}, [1, 2])


def test_where_there_are_more_calls_than_ranges_nothing_is_guessed() -> None:
    ranges = in_thread_order([(60, 300, 0, "gloo:all_reduce", GLOO_A), (80, 400, 1, "gloo:all_reduce", GLOO_B)])
    assert assign([open_call(1, 10), open_call(2, 70), open_call(3, 75)], ranges, {}) == ({}, [1, 2, 3])


def test_intervals_are_unions_of_shape_n_by_2(tmp_path: Path) -> None:
    joined = join(tmp_path, [event("cpu_op", "aten::mm", MAIN, 5, 9)], [])
    assert joined.compute.dtype == np.int64
    assert (joined.compute.tolist(), joined.memory.shape) == ([[5, 9]], (0, 2))
