"""The collectives of files that nobody's ddptrace recorded: what each was, who launched it, when it ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_files import ENGINE, MAIN, Event, copy, event, gloo, kernel, launch, load, nccl, node, op, said

from ddptrace.load.tables import Call, Identity, LoadedRank
from ddptrace.load.windows.comm_kernels import CommRule
from ddptrace.schema import Evidence

DDP = said("DistributedDataParallel.forward", 0, 10)
TWO = {"distributedInfo": {"rank": 0, "world_size": 2}}


def only(loaded: LoadedRank) -> Call:
    (call,) = loaded.run.calls
    return call


def ran(call: Call) -> tuple[int, int] | None:
    return (call.exec.begin_at_ns, call.exec.end_at_ns) if call.exec else None


def codes(loaded: LoadedRank) -> list[str]:
    return [finding.code for finding in loaded.findings]


def test_a_kernels_own_arguments_tell_what_it_was_before_the_range_around_its_launch(tmp_path: Path) -> None:
    args = {
        "Collective name": "_allgather_base", "Process Group Name": "4", "Process Group Ranks": "[0, 2, 4, 6]",
        "Group size": 4, "In msg nelems": 100, "Out msg nelems": 400, "dtype": "BFloat16",
    }  # fmt: skip
    call = only(
        load(
            tmp_path,
            said("nccl:all_reduce", 10, 20, **{"Input Dims": [[7]], "Input type": ["float"]}), launch(1, 12, 14),
            kernel("ncclDevKernel_Generic(x)", 1, 30, 50, stream=20, **args),
        )
    )  # fmt: skip
    assert (call.op, call.identity, call.group, call.group_size) == (
        "all_gather_into_tensor", Identity.ARGUMENTS, "4", 4,
    )  # fmt: skip
    assert (call.nbytes_in, call.nbytes_out, call.dtype) == (200, 800, "bfloat16")
    assert (call.launch_at_ns, call.issued_at_ns, call.thread, ran(call)) == (10_000, 20_000, MAIN, (30_000, 50_000))
    assert call.exec is not None
    assert (call.exec.lane, call.exec.evidence) == ("0:20", Evidence.DEVICE)


def test_the_range_around_the_launch_tells_op_and_bytes_where_the_kernel_does_not(tmp_path: Path) -> None:
    shape = {"Input Dims": [[8, 1000]], "Input type": ["c10::Half"]}
    call = only(load(tmp_path, *nccl(1, 10, 30, 50, "_reduce_scatter_base", **shape), **TWO))
    assert (call.op, call.identity, call.dtype) == ("reduce_scatter_tensor", Identity.ANNOTATION, "float16")
    assert (call.nbytes_in, call.nbytes_out, call.group_size) == (16_000, 8_000, 2)
    gathered = only(load(tmp_path, *nccl(1, 10, 30, 50, "_all_gather_base", **shape), **TWO))
    assert (gathered.op, gathered.nbytes_in, gathered.nbytes_out) == ("all_gather_into_tensor", 16_000, 32_000)


def test_the_record_of_parameters_around_the_launch_tells_of_the_group(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce", "Process Group Name": "1", "Group size": 8, "In msg nelems": 10,
        "Out msg nelems": 10, "dtype": "Long",
    }  # fmt: skip
    call = only(load(tmp_path, op("record_param_comms", 9, 21, **args), *nccl(1, 10, 30, 50)))
    assert (call.op, call.group, call.group_size, call.nbytes_in, call.nbytes_out) == ("all_reduce", "1", 8, 80, 0)
    assert (call.dtype, call.identity) == ("int64", Identity.ANNOTATION)


def test_the_name_tells_where_nothing_else_does(tmp_path: Path) -> None:
    events = [launch(1, 1, 2), kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 1, 3, 9, stream=20)]
    call = only(load(tmp_path, *events))
    assert (call.op, call.identity, call.group, call.group_size) == ("all_reduce", Identity.NAME, "", None)
    assert (call.nbytes_in, call.dtype, call.launch_at_ns, call.issued_at_ns) == (0, "", 1000, 2000)


def test_a_users_rule_makes_a_kernel_a_collective(tmp_path: Path) -> None:
    events = [launch(1, 1, 2), kernel("my_exchange", 1, 3, 9)]
    assert load(tmp_path, *events).run.calls == ()
    assert only(load(tmp_path, *events, rules=(CommRule("my_ex", "all_to_all"),))).op == "all_to_all"


def test_kernels_launched_in_one_range_are_one_call_that_runs_over_all_of_them(tmp_path: Path) -> None:
    grouped = [
        said("nccl:coalesced", 10, 20), launch(1, 11, 12), launch(2, 13, 14),
        kernel("ncclDevKernel_SendRecv(x)", 1, 30, 40, stream=20),
        kernel("ncclDevKernel_SendRecv(x)", 2, 35, 70, stream=20),
    ]  # fmt: skip
    graph = [launch(3, 80, 81), kernel("ncclKernel_a", 3, 90, 91), kernel("ncclKernel_b", 3, 92, 93)]
    calls = load(tmp_path, *grouped, *graph).run.calls
    assert [(call.op, ran(call)) for call in calls] == [
        ("coalesced", (30_000, 70_000)), ("unknown", (90_000, 91_000)), ("unknown", (92_000, 93_000)),
    ]  # fmt: skip


def test_calls_are_numbered_in_launch_order_and_within_their_group_not_as_they_ran(tmp_path: Path) -> None:
    args = {"Collective name": "allreduce", "Process Group Name": "b"}
    late = [launch(1, 10, 11), kernel("ncclKernel", 1, 90, 95, stream=20, **args)]
    early = [launch(2, 20, 21), kernel("ncclKernel", 2, 30, 40, stream=21, **args)]
    other = [launch(3, 15, 16), kernel("ncclKernel", 3, 50, 60, stream=22, **(args | {"Process Group Name": "a"}))]
    calls = load(tmp_path, *late, *early, *other).run.calls
    assert [(call.seq, call.group, call.ordinal, call.launch_at_ns) for call in calls] == [
        (1, "b", 0, 10_000), (2, "a", 0, 15_000), (3, "b", 1, 20_000),
    ]  # fmt: skip


def test_a_kernel_without_launch_was_launched_before_those_with_one(tmp_path: Path) -> None:
    queued = kernel("ncclKernel_Broadcast", 9, 40, 60, stream=20)
    loaded = load(tmp_path, queued, *nccl(1, 10, 70, 80))
    assert [(call.op, call.launch_at_ns, ran(call)) for call in loaded.run.calls] == [
        ("broadcast", 10_000, (40_000, 60_000)), ("all_reduce", 10_000, (70_000, 80_000)),
    ]  # fmt: skip
    assert [call.is_launch_recorded for call in loaded.run.calls] == [False, True]
    assert not loaded.findings


def test_the_size_of_an_unnamed_group_is_known_only_where_there_is_one_communicator(tmp_path: Path) -> None:
    one = [*nccl(1, 10, 30, 50), *nccl(2, 60, 70, 80)]
    assert [call.group_size for call in load(tmp_path, *one, **TWO).run.calls] == [2, 2]
    other = [*nccl(1, 10, 30, 50), launch(2, 60, 61), kernel("ncclKernel", 2, 70, 80, stream=21)]
    assert [call.group_size for call in load(tmp_path, *other, **TWO).run.calls] == [None, None]
    listed = {"pg_config": [{"pg_name": "0", "ranks": [0, 1, 2], "backend_config": "nccl"}], "world_size": 3}
    loaded = load(tmp_path, *other, distributedInfo=listed)
    assert [(call.group, call.group_size) for call in loaded.run.calls] == [("0", 3), ("0", 3)]
    assert [(group.name, group.ranks) for group in loaded.run.groups] == [("0", (0, 1, 2))]


def test_groups_that_only_arguments_name_are_groups(tmp_path: Path) -> None:
    args = {"Collective name": "allreduce", "Process Group Name": "x", "Process Group Ranks": "[1, 5]"}
    loaded = load(tmp_path, launch(1, 1, 2), kernel("ncclKernel", 1, 3, 9, **args))
    assert [(group.name, group.ranks) for group in loaded.run.groups] == [("x", (1, 5))]
    assert only(loaded).group_size == 2


def test_only_all_reduces_of_gradients_that_the_engine_launches_under_ddp_are_its_reducers(tmp_path: Path) -> None:
    shape = {"Input Dims": [[10]], "Input type": ["float"]}
    ints = {"Input Dims": [[10]], "Input type": ["int"]}
    events = [
        DDP, op("aten::mm", 1, 9), node(20, 30), *nccl(1, 22, 40, 50, tid=ENGINE, **shape), node(30, 40),
        *nccl(2, 31, 50, 60, tid=ENGINE, **ints), *nccl(3, 35, 60, 70, "broadcast", tid=ENGINE, **shape),
        op("aten::add", 50, 60), *nccl(4, 70, 80, 90, **shape), node(100, 110), *nccl(5, 102, 120, 130, tid=ENGINE),
        *nccl(6, 140, 150, 160, tid=ENGINE),
    ]  # fmt: skip
    run = load(tmp_path, *events).run
    assert [(call.seq, call.is_native, call.reducer) for call in run.calls] == [
        (1, True, 0), (2, False, None), (3, False, None), (4, False, None), (5, True, 0),
        (6, False, None),
    ]  # fmt: skip
    (reducer,) = run.reducers
    assert (reducer.reducer, reducer.kind, reducer.parameters, reducer.layouts) == (
        0,
        "DistributedDataParallel",
        (),
        (),
    )
    without = load(tmp_path, *events[1:]).run
    assert not any(call.is_native for call in without.calls)
    assert without.reducers == ()


def test_gloos_own_ranges_are_calls_launched_by_the_operator_of_the_same_place_in_line(tmp_path: Path) -> None:
    shape = {"Input Dims": [[250]], "Input type": ["float"]}
    loaded = load(
        tmp_path, op("c10d::allreduce_", 10, 12), op("c10d::_allgather_base_", 13, 14), op("c10d::allreduce_", 15, 18),
        gloo(20, 30, 11, **shape), gloo(25, 60, 12), gloo(40, 50, 11, "all_gather"),
    )  # fmt: skip
    assert [(call.op, call.launch_at_ns, call.issued_at_ns, ran(call)) for call in loaded.run.calls] == [
        ("all_reduce", 10_000, 12_000, (20_000, 30_000)), ("all_gather_into_tensor", 13_000, 14_000, (40_000, 50_000)),
        ("all_reduce", 15_000, 18_000, (25_000, 60_000)),
    ]  # fmt: skip
    first, _, last = loaded.run.calls
    assert (first.nbytes_in, first.dtype, first.identity, last.identity) == (
        1000, "float32", Identity.ARGUMENTS, Identity.ANNOTATION,
    )  # fmt: skip
    assert first.exec is not None
    assert (first.exec.evidence, first.exec.lane) == (Evidence.BACKEND, "thread 11")


def test_where_an_operator_of_gloos_ranges_is_missing_or_too_late_none_is_guessed(tmp_path: Path) -> None:
    missing = load(tmp_path, op("c10d::allreduce_", 10, 12), gloo(20, 30), gloo(40, 50))
    assert [call.launch_at_ns for call in missing.run.calls] == [20_000, 40_000]
    late = load(tmp_path, op("c10d::allreduce_", 10, 12), op("c10d::allreduce_", 45, 46), gloo(20, 30), gloo(40, 50))
    assert [call.launch_at_ns for call in late.run.calls] == [20_000, 40_000]


def test_without_device_activity_a_job_of_nccl_has_launches_only_and_that_is_said(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, said("nccl:all_reduce", 10, 20, **{"Input Dims": [[5]], "Input type": ["double"]}),
        said("nccl:send 0->1", 30, 40), op("c10d::allreduce_", 9, 21),
    )  # fmt: skip
    assert [(call.op, call.launch_at_ns, call.nbytes_in, call.exec) for call in loaded.run.calls] == [
        ("all_reduce", 10_000, 40, None), ("send", 30_000, 0, None),
    ]  # fmt: skip
    assert all(call.on_device for call in loaded.run.calls)
    (finding,) = loaded.findings
    assert finding.code == "exec-missing"
    assert "no activity of a device" in finding.message


def test_operators_alone_are_launches_too_and_a_missing_kernel_is_told_apart(tmp_path: Path) -> None:
    loaded = load(tmp_path, op("c10d::broadcast_", 1, 2), kernel("gemm", 1, 3, 4))
    assert [(call.op, call.exec) for call in loaded.run.calls] == [("broadcast", None)]
    assert ["no kernel in the file is known" in finding.message for finding in loaded.findings] == [True]


def test_a_thread_whose_id_is_no_number_still_launches(tmp_path: Path) -> None:
    assert only(load(tmp_path, *nccl(1, 10, 30, 50, tid="main"))).launch_at_ns == 10_000


def test_a_file_without_communication_has_no_calls_and_no_finding_of_them(tmp_path: Path) -> None:
    loaded = load(tmp_path, op("aten::mm", 1, 2), event("kernel", "gemm", 7, 3, 4, pid=0))
    assert (loaded.run.calls, codes(loaded)) == ((), [])


BUCKETS = [
    op("aten::a", 5, 9), node(20, 90, MAIN), op("c10d::allreduce_", 22, 24), op("c10d::allreduce_", 80, 82),
    gloo(30, 104, 11), gloo(85, 130, 12), op("aten::as_strided", 100, 101), copy(102, 103), copy(103, 104),
    op("aten::as_strided", 118, 119), copy(120, 122), copy(122, 126), op("aten::add_", 140, 150),
]  # fmt: skip
ONE_BUCKET_COPIED = [event for event in BUCKETS if event["ts"] not in (102, 103)]


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ([DDP, *BUCKETS], [102, 120]),
        ([DDP, said(DDP["name"], 11, 15), *BUCKETS], [104, 122]),
        ([DDP, *ONE_BUCKET_COPIED], [104, 122]),
        ([DDP, *BUCKETS[:5], gloo(110, 130, 12), *BUCKETS[6:]], [102, 120]),
        ([DDP, *BUCKETS[:4], gloo(103, 108), gloo(110, 130, 12), *BUCKETS[6:]], [108, 122]),
    ],
    ids=["bucket by bucket", "two modules", "fewer copies than buckets", "the second late", "the first too late"],
)
def test_a_reduction_by_gloo_was_over_when_ddp_used_its_result(
    tmp_path: Path, events: list[Event], ends: list[int]
) -> None:
    found = [ran(call) for call in load(tmp_path, *events).run.calls]
    assert [span[1] for span in found if span] == [end * 1000 for end in ends]


def test_a_reduction_that_began_after_ddps_copy_stays_as_it_is(tmp_path: Path) -> None:
    events = [
        DDP, node(20, 40, MAIN), op("c10d::allreduce_", 22, 24), gloo(60, 70), copy(50, 52),
    ]  # fmt: skip
    assert ran(only(load(tmp_path, *events))) == (60_000, 70_000)
    assert ran(only(load(tmp_path, *events, copy(65, 66)))) == (60_000, 65_000)


def test_on_a_device_the_copies_tell_nothing_of_when_a_reduction_was_over(tmp_path: Path) -> None:
    events = [DDP, node(20, 40, MAIN), *nccl(1, 22, 30, 90), copy(50, 52)]
    call = only(load(tmp_path, *events))
    assert (call.is_native, ran(call)) == (True, (30_000, 90_000))
