"""One rank from foreign files: steps, phases, windows, and what real files of every age give."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from foreign_files import ENGINE, MAIN, Event, copy, event, gloo, kernel, launch, load, nccl, node, op, said, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.load.foreign.experts import RANGE
from ddptrace.load.foreign.rank import load_traces
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.run import read_run
from ddptrace.load.sources import TraceFile
from ddptrace.load.tables import Identity, LoadedRank, RankRun, Work
from ddptrace.load.windows.comm_kernels import CommRule
from ddptrace.schema import Evidence, Phase, StepEnd


def steps(run: RankRun) -> list[tuple[int, int, int]]:
    """Ordinal, begin and end in microseconds."""
    return [(step.ordinal, step.begin_at_ns // 1000, step.end_at_ns // 1000) for step in run.steps]


def phases(run: RankRun) -> list[tuple[str, int, int]]:
    return [(mark.phase.name, mark.begin_at_ns // 1000, mark.end_at_ns // 1000) for mark in run.phases]


def codes(loaded: LoadedRank) -> list[str]:
    return [finding.code for finding in loaded.findings]


def optimizer(begin: float, end: float, name: str = "SGD", tid: int = MAIN) -> Event:
    return said(f"Optimizer.step#{name}.step", begin, end, tid)


def data(begin: float, end: float) -> Event:
    return said("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, end)


def test_steps_are_the_profilers_and_what_lies_between_two_belongs_to_the_second(tmp_path: Path) -> None:
    run = load(tmp_path, said("ProfilerStep#7", 10, 90), said("ProfilerStep#8", 100, 200), optimizer(50, 60)).run
    assert steps(run) == [(7, 10, 90), (8, 90, 200)]
    assert {step.ended_by for step in run.steps} == {StepEnd.SAID}


def test_steps_that_overlap_by_the_rounding_of_their_times_are_all_there_and_one_inside_another_is_not(
    tmp_path: Path,
) -> None:
    events = [said(f"ProfilerStep#{k}", 1000 * k, 1000 * k + 1000.001) for k in range(3)]
    inside = said("ProfilerStep#9", 1100, 1200)
    found = [(step.ordinal, step.begin_at_ns, step.end_at_ns) for step in load(tmp_path, *events, inside).run.steps]
    assert found == [(0, 0, 1_000_001), (1, 1_000_001, 2_000_001), (2, 2_000_001, 3_000_001)]


def test_a_users_rule_that_knows_no_kernel_is_told(tmp_path: Path) -> None:
    events = [launch(1, 0, 2), kernel("my_all_reduce", 1, 5, 9)]
    unused = "comm-kernel-unused"
    assert unused in codes(load(tmp_path, *events, rules=(CommRule("my_al_reduce", "all_reduce"),)))
    assert unused not in codes(load(tmp_path, *events, rules=(CommRule("my_all_reduce", "all_reduce"),)))


def test_copies_of_the_steps_on_another_thread_count_once(tmp_path: Path) -> None:
    own = [said("ProfilerStep#1", 10, 90), said("ProfilerStep#2", 100, 200)]
    run = load(tmp_path, said("ProfilerStep#1", 15, 95, tid=77), *own, said("ProfilerStep#junk", 201, 202)).run
    assert steps(run) == [(1, 10, 90), (2, 90, 200)]


def test_without_the_profilers_steps_an_update_ends_one_and_two_optimizers_update_once(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 5, 9), node(10, 20), optimizer(20, 30), optimizer(31, 40, "Adam"), op("aten::mm", 42, 48),
        node(50, 60), optimizer(62, 70), op("aten::mm", 80, 90),
    ]  # fmt: skip
    run = load(tmp_path, *events).run
    assert steps(run) == [(0, 5, 40), (1, 40, 70)]
    assert {step.ended_by for step in run.steps} == {StepEnd.OPTIMIZER}
    assert load(tmp_path, op("aten::mm", 5, 9)).run.steps == ()


LOOP = [
    data(0, 10), op("aten::to", 11, 12), said("Optimizer.zero_grad#SGD.zero_grad", 13, 20), op("aten::zero_", 14, 19),
    op("aten::linear", 22, 30), op("aten::addmm", 23, 29), op("aten::mse_loss", 31, 34), node(40, 50), node(52, 60),
    op("aten::mul", 53, 59, ENGINE), optimizer(70, 80), op("aten::add_", 71, 79),
]  # fmt: skip


def test_phases_are_read_off_the_main_threads_operators_and_the_engines_nodes(tmp_path: Path) -> None:
    run = load(tmp_path, *LOOP).run
    assert phases(run) == [("DATA", 0, 10), ("FORWARD", 11, 34), ("BACKWARD", 40, 60), ("OPTIMIZER", 70, 80)]
    assert {mark.thread for mark in run.phases} == {MAIN}
    assert [mark.backward for mark in run.phases] == [None, None, 0, None]


def test_gradients_zeroed_just_before_backward_do_not_cut_the_forward(tmp_path: Path) -> None:
    zeroed = said("Optimizer.zero_grad#SGD.zero_grad", 33, 36), op("aten::zero_", 34, 35)
    run = load(tmp_path, data(0, 10), op("aten::linear", 22, 30), *zeroed, node(40, 50)).run
    assert phases(run) == [("DATA", 0, 10), ("FORWARD", 22, 30), ("BACKWARD", 40, 50)]


def test_an_operator_of_the_main_thread_between_nodes_ends_a_backward(tmp_path: Path) -> None:
    run = load(tmp_path, op("aten::a", 0, 5), node(10, 20), op("aten::b", 22, 25), node(30, 40), node(41, 45)).run
    assert phases(run) == [("FORWARD", 0, 5), ("BACKWARD", 10, 20), ("FORWARD", 22, 25), ("BACKWARD", 30, 45)]
    assert [mark.backward for mark in run.phases] == [None, 0, None, 1]


def test_the_engine_may_run_on_the_main_thread_and_old_files_name_only_its_nodes(tmp_path: Path) -> None:
    own = [op("aten::a", 0, 5), node(10, 20, MAIN), op("aten::mm", 12, 18), node(21, 30, MAIN), op("aten::b", 40, 45)]
    assert phases(load(tmp_path, *own).run) == [("FORWARD", 0, 5), ("BACKWARD", 10, 30)]
    old = [
        op("aten::a", 0, 5), op("MeanBackward1", 10, 20, ENGINE), op("aten::expand", 12, 18, ENGINE),
        op("torch::autograd::AccumulateGrad", 21, 30, ENGINE),
    ]  # fmt: skip
    assert phases(load(tmp_path, *old).run) == [("FORWARD", 0, 5), ("BACKWARD", 10, 30)]


def test_the_reducer_copying_gradients_back_is_part_of_the_backward(tmp_path: Path) -> None:
    copies = op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 62, 66, ENGINE)
    run = load(tmp_path, op("aten::a", 0, 5), node(10, 20), copies, op("aten::b", 70, 75)).run
    assert phases(run) == [("FORWARD", 0, 5), ("BACKWARD", 10, 66)]


def test_a_backward_reaches_to_ddps_last_copy_whatever_leads_to_it_and_no_further(tmp_path: Path) -> None:
    copies = [op("aten::as_strided", 62, 63), copy(64, 66), op("aten::as_strided", 75, 76), copy(77, 79)]
    later = [op("aten::b", 85, 90), node(100, 110, MAIN), op("aten::c", 115, 118), op("aten::as_strided", 120, 121)]
    run = load(tmp_path, op("aten::a", 0, 5), node(10, 20, MAIN), *copies, *later).run
    assert phases(run) == [("FORWARD", 0, 5), ("BACKWARD", 10, 79), ("FORWARD", 85, 90), ("BACKWARD", 100, 110)]
    updated = load(tmp_path, op("aten::a", 0, 5), node(10, 20, MAIN), optimizer(30, 40), *copies).run
    assert ("BACKWARD", 10, 20) in phases(updated)


def waits(loaded: LoadedRank) -> list[int | None]:
    return [row.wait_ns for row in analyze_rank(loaded.run).steps]


def test_the_host_waits_for_ddp_on_gloo_from_the_last_launch_and_what_was_not_seen_is_not_measured(
    tmp_path: Path,
) -> None:
    step, compute = said("ProfilerStep#4", 0, 200), [op("aten::a", 0, 5), node(10, 40, MAIN), op("aten::b", 150, 160)]
    launches = [op("c10d::allreduce_", 12, 14), op("c10d::allreduce_", 30, 32)]
    under_ddp = [said("DistributedDataParallel.forward", 0, 5), step, *compute, *launches]
    assert waits(load(tmp_path, *under_ddp, gloo(15, 60), gloo(33, 110, 12), copy(100, 120))) == [68_000]
    assert waits(load(tmp_path, *under_ddp, copy(100, 120))) == [None]
    by_hand = [op("c10d::allreduce_", 50, 52), gloo(53, 90)]
    assert waits(load(tmp_path, step, *compute, *by_hand)) == [None]


def test_on_a_cpu_a_backward_under_ddp_lasts_until_its_reductions_are_over(tmp_path: Path) -> None:
    events = [
        said("DistributedDataParallel.forward", 0, 5), op("aten::a", 0, 5), node(10, 20, MAIN),
        op("c10d::allreduce_", 12, 14), said("gloo:all_reduce", 15, 48, 11), op("aten::b", 50, 55),
    ]  # fmt: skip
    run = load(tmp_path, *events).run
    assert ("BACKWARD", 10, 48) in phases(run)
    assert not run.windows[0].on_device
    assert run.windows[0].compute.tolist() == [[0, 5000], [50_000, 55_000]]
    events[4] = said("gloo:all_reduce", 15, 70, 11)
    assert ("BACKWARD", 10, 50) in phases(load(tmp_path, *events).run)  # the next operator runs
    without = load(tmp_path, *events[1:]).run
    assert ("BACKWARD", 10, 20) in phases(without)


def test_the_window_is_the_file_and_its_times_count_from_the_runs_zero(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 5, 40), launch(1, 10, 12), kernel("gemm", 1, 20, 60), *nccl(2, 13, 50, 70),
    ]  # fmt: skip
    path = write(tmp_path / "a.json", events, host_name="node7", deviceProperties=[{"name": "H200"}])
    run = load_traces(TraceFile(3, (path,)), zero_unix_ns=5000, cache=None, rules=()).run
    (window,) = run.windows
    assert (window.file, window.begin_at_ns, window.end_at_ns, window.on_device) == ("a.json", 0, 65_000, True)
    assert window.compute.tolist() == [[15_000, 55_000]]
    assert window.device is not None
    assert window.device.launch_begin_at_ns.tolist() == [5000, 9000]
    assert (run.begin_at_ns, run.end_at_ns, run.rank, run.host, run.device) == (0, 65_000, 3, "node7", "H200")
    assert (run.recorded, run.clean, run.pid) == (False, True, 1)


def windows(folder: Path, *files: list[Event]) -> LoadedRank:
    paths = [write(folder / f"w{k}.json", events) for k, events in enumerate(files)]
    return load_traces(TraceFile(3, tuple(paths)), zero_unix_ns=0, cache=None, rules=())


def window_of(at: float, step: int) -> list[Event]:
    loop = [event | {"ts": event["ts"] + at} for event in LOOP]
    return [said(f"ProfilerStep#{step}", at, at + 90), *loop, *nccl(1, at + 35, at + 40, at + 50)]


def test_windows_of_one_rank_follow_each_other_and_are_numbered_through(tmp_path: Path) -> None:
    loaded = windows(tmp_path, window_of(1000, 20), window_of(0, 10))
    run = loaded.run
    assert [window.file for window in run.windows] == ["w1.json", "w0.json"]
    assert steps(run) == [(10, 0, 90), (20, 1000, 1090)]
    assert [(call.seq, call.ordinal) for call in run.calls] == [(1, 0), (2, 1)]
    assert [mark.backward for mark in run.phases if mark.phase is Phase.BACKWARD] == [0, 1]
    assert (run.begin_at_ns, run.end_at_ns, loaded.findings) == (0, 1_090_000, ())


def test_a_window_that_counts_its_steps_anew_goes_on_from_the_last(tmp_path: Path) -> None:
    loaded = windows(tmp_path, window_of(0, 4), window_of(1000, 4))
    assert [step.ordinal for step in loaded.run.steps] == [4, 5]
    assert codes(loaded) == ["steps-renumbered"]


def of_process(events: list[Event], pid: int) -> list[Event]:
    """On threads that have the process's number, as under Linux."""
    threads = {MAIN: pid, ENGINE: pid + 1}
    return [
        one if one["pid"] == 0 else one | {"pid": pid, "tid": threads.get(one["tid"], one["tid"])} for one in events
    ]


def test_files_of_several_processes_stand_on_one_main_thread_and_are_told_once(tmp_path: Path) -> None:
    restarted = of_process(window_of(2_000_000, 4), 70)
    loaded = windows(tmp_path, of_process(window_of(0, 4), 50), of_process(window_of(1000, 5), 50), restarted)
    assert [step.ordinal for step in loaded.run.steps] == [4, 5, 6]
    assert {mark.thread for mark in loaded.run.phases} == {50}
    assert {call.thread for call in loaded.run.calls} == {50}
    named = {row.phase for row in analyze_rank(loaded.run).phases if row.step == 6}
    assert {"data", "forward", "backward", "optimizer"} <= named
    (finding,) = loaded.findings
    assert (finding.code, finding.severity, finding.where) == ("several-processes", "warning", "rank 3")
    assert "different processes (pid 50, pid 70 2 s later)" in finding.message


def test_a_job_restarted_often_names_its_first_processes(tmp_path: Path) -> None:
    loaded = windows(tmp_path, *(of_process(window_of(k * 1000, k), 10 * k + 10) for k in range(6)))
    (finding,) = loaded.findings
    assert "pid 40 0.00091 s later and 2 more)" in finding.message


def test_a_file_that_overlaps_another_of_its_rank_is_left_out_and_told(tmp_path: Path) -> None:
    loaded = windows(tmp_path, window_of(0, 4), window_of(50, 5))
    assert [window.file for window in loaded.run.windows] == ["w0.json"]
    assert codes(loaded) == ["rank-claimed-twice"]


def test_a_file_that_cannot_be_read_is_told_and_the_rank_stands_with_the_rest(tmp_path: Path) -> None:
    good = write(tmp_path / "a.json", window_of(0, 1))
    broken = tmp_path / "b.json.gz"
    broken.write_bytes(gzip.compress(good.read_bytes())[:-8] + b"\0" * 8)
    loaded = load_traces(TraceFile(3, (broken, good)), zero_unix_ns=0, cache=None, rules=())
    assert [window.file for window in loaded.run.windows] == ["a.json"]
    (finding,) = loaded.findings
    assert (finding.code, finding.severity, finding.where) == ("trace-unreadable", "error", "rank 3, b.json.gz")
    alone = load_traces(TraceFile(3, (broken,)), zero_unix_ns=0, cache=None, rules=())
    assert (alone.run.rank, alone.run.windows, alone.run.calls, codes(alone)) == (3, (), (), ["trace-unreadable"])


def test_a_file_cut_short_shows_what_is_left_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [*window_of(0, 1), op("aten::lost", 80, 85)])
    path.write_bytes(path.read_bytes()[:-40])
    loaded = load_traces(TraceFile(3, (path,)), zero_unix_ns=0, cache=None, rules=())
    assert steps(loaded.run) == [(1, 0, 90)]
    assert codes(loaded) == ["trace-damaged"]


def test_a_file_without_events_is_told(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert codes(loaded) == ["trace-empty"]
    assert (loaded.run.steps, loaded.run.calls, loaded.run.begin_at_ns) == ((), (), 0)


NAMES = (
    "ProfilerStep#1", "ProfilerStep#99999999999999999999", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.x",
    "enumerate(DataLoader)#x.__next__", "DistributedDataParallel.forward", "nccl:all_reduce", "nccl:", "gloo:",
    "gloo:all_reduce", "c10d::allreduce_", "c10d::", "record_param_comms", "aten::mm", "ncclKernel_AllReduce", "",
    "autograd::engine::evaluate_function: A", "torch.distributed.ddp.reducer::copy", "cudaLaunchKernel",
    "nn.Module: X_0",
)  # fmt: skip
CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "python_function")
ARGS = st.fixed_dictionaries(
    {"correlation": st.integers(0, 4)},
    optional={
        "Collective name": st.sampled_from(["allreduce", "", "wait"]),
        "Process Group Name": st.sampled_from(["0", "a"]),
        "Process Group Ranks": st.sampled_from(["[0, 1]", "[", "[]"]),
        "Group size": st.integers(0, 3),
        "In msg nelems": st.integers(0, 9),
        "dtype": st.sampled_from(["Float", "?", ""]),
    },
)
EVENTS = st.builds(
    lambda category, name, tid, begin, length, args: event(category, name, tid, begin, begin + length, **args),
    st.sampled_from(CATEGORIES), st.sampled_from(NAMES), st.sampled_from([1, 2, "x", -5, "stream 7"]),
    st.integers(-20, 60), st.integers(-1, 40), ARGS,
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=25), st.booleans())
def test_any_mixture_of_events_gives_a_rank_in_order(tmp_path: Path, events: list[Event], grouped: bool) -> None:
    info = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]} if grouped else {}
    run = load(tmp_path, *events, distributedInfo=info).run
    launches = [call.launch_at_ns for call in run.calls]
    assert launches == sorted(launches)
    assert all(call.issued_at_ns >= call.launch_at_ns and call.nbytes_in >= 0 for call in run.calls)
    assert all(one.end_at_ns <= other.begin_at_ns for one, other in itertools.pairwise(run.steps))
    assert all(step.begin_at_ns < step.end_at_ns for step in run.steps)
    assert all(mark.begin_at_ns <= mark.end_at_ns for mark in run.phases)
    backwards = [mark for mark in run.phases if mark.phase is Phase.BACKWARD]
    assert [mark.backward for mark in backwards] == list(range(len(backwards)))
    assert all(one.end_at_ns <= other.begin_at_ns for one, other in itertools.pairwise(backwards))
    kernels = sum(one["cat"] == "kernel" for one in events)
    device = run.windows[0].device if run.windows else None
    assert (0 if device is None else int((device.kind != Work.MEMORY).sum())) == kernels


def real(path: Path) -> LoadedRank:
    zero = int(read_kineto(path).begin_ns.min())
    return load_traces(TraceFile(3, (path,)), zero_unix_ns=zero, cache=None, rules=())


def test_eight_ranks_of_dlrm_have_their_eight_collectives_with_bytes(shared_traces: Path) -> None:
    files = sorted((shared_traces / "dlrm-8ranks").glob("*.gz"))
    assert len(files) == 8
    for file in files:
        run = real(file).run
        assert Counter(call.op for call in run.calls) == {"all_reduce": 3, "all_to_all": 5}
        assert {(call.identity, call.group_size) for call in run.calls} == {(Identity.ANNOTATION, 8)}
        assert all(call.exec and call.exec.evidence is Evidence.DEVICE for call in run.calls)
        reduced = [(call.nbytes_in, call.dtype, call.is_native) for call in run.calls if call.op == "all_reduce"]
        assert reduced[0] == (394241 * 4, "float32", True)
        assert all(nbytes > 0 and is_native for nbytes, _, is_native in reduced)
        assert [step.ordinal for step in run.steps] == [10]
        assert [phase for phase, _, _ in phases(run)] == ["DATA", "FORWARD", "BACKWARD", "OPTIMIZER"]


def test_ddp_on_two_gpus_shows_its_buckets_in_each_backward(shared_traces: Path) -> None:
    loaded = real(shared_traces / "ddp-a100" / "nccl_data.json.gz")
    run = loaded.run
    assert [step.ordinal for step in run.steps] == [4, 5, 6]
    assert Counter((call.op, call.identity) for call in run.calls) == {
        ("all_reduce", Identity.ARGUMENTS): 15, ("broadcast", Identity.ARGUMENTS): 6,
    }  # fmt: skip
    backwards = [mark for mark in run.phases if mark.phase is Phase.BACKWARD]
    sizes = [
        [c.nbytes_in for c in run.calls if c.is_native and mark.begin_at_ns <= c.launch_at_ns < mark.end_at_ns]
        for mark in backwards
    ]
    assert sizes == [[4 * n for n in (2049000, 7875584, 6563840, 6637568, 2431040)]] * 3
    assert [call.is_native for call in run.calls if call.op == "broadcast"] == [False] * 6
    assert (run.device, loaded.said_world_size) == ("NVIDIA A100-PG509-200", 2)
    assert {(call.group, call.group_size) for call in run.calls} == {("0", 2)}


def test_what_a_compiled_graph_reduces_without_ddp_is_nobodys_bucket(shared_traces: Path) -> None:
    run = real(shared_traces / "old-format" / "df_index_resolver.json.gz").run
    assert len(run.calls) == 2020
    assert not any(call.is_native for call in run.calls)
    assert run.reducers == ()
    assert [phase for phase, _, _ in phases(run)] == ["FORWARD", "BACKWARD", "OPTIMIZER"] * 5
    assert len(run.steps) == 5


def test_sampled_kernels_of_two_communicators_leave_group_sizes_open(shared_traces: Path) -> None:
    run = real(shared_traces / "sampled-2of128" / "sampled_rank-0.json.gz").run
    assert Counter(call.op for call in run.calls) == {"all_to_all": 4, "all_reduce": 4, "all_gather_into_tensor": 2}
    assert {call.group_size for call in run.calls} == {None}


def test_gloo_on_cpu_shows_two_buckets_per_backward(shared_traces: Path) -> None:
    run = real(shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz").run
    assert [(call.op, call.is_native, call.nbytes_in) for call in run.calls] == [
        ("all_reduce", True, 4 * 321271), ("all_reduce", True, 8329644),
    ] * 5  # fmt: skip
    assert all(
        c.exec and c.exec.evidence is Evidence.BACKEND and c.launch_at_ns < c.exec.begin_at_ns for c in run.calls
    )
    assert (run.host, run.device) == ("twshared16453.15.atn5.facebook.com", "cpu")


ODD = {
    "bare_list_2021.json.gz": (6, 0, []),
    "cuda_event_sync.json.gz": (1, 0, []),
    "distributed_info_not_found.json.gz": (1, 6, ["exec-missing"]),
    "mi250_minitoy_train_ROCm6_2_kineto.json.gz": (2, 0, []),
    "rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": (0, 1, []),
    "rank_non_gpu.json.gz": (1, 6, ["exec-missing"]),
    "rank_not_found.json.gz": (1, 6, ["exec-missing"]),
    "triton_example.json.gz": (1, 0, []),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_real_files_give_what_is_in_them(shared_traces: Path, name: str) -> None:
    loaded = real(shared_traces / "odd" / name)
    assert (len(loaded.run.steps), len(loaded.run.calls), codes(loaded)) == ODD[name]
    assert not loaded.run.recorded


def test_every_file_of_real_traces_survives_being_loaded_as_one_rank(shared_traces: Path) -> None:
    numbers = json.loads((shared_traces / "expected.json").read_text())
    for file in numbers:
        run = real(shared_traces / file).run
        assert run.windows[0].device is not None
        assert all(call.launch_at_ns <= call.issued_at_ns for call in run.calls)
        assert [call.seq for call in run.calls] == list(range(1, len(run.calls) + 1))
        launches = [call.launch_at_ns for call in run.calls]
        assert launches == sorted(launches)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dispatch(F)", ("dispatch", "(F)")),
        ("FusedCombineBackward", ("Combine", "Backward")),
        ("moe.token_dispatch", ("dispatch", None)),
        ("dispatcher", None),
        ("get_dispatch_layout", None),
    ],
)
def test_a_range_around_an_exchange_of_experts_is_known_by_the_end_of_its_name(name: str, told: object) -> None:
    found = RANGE.search(name)
    assert (found and (found["what"], found["way"])) == told


def test_exchanges_of_deepep_are_units_by_the_ranges_around_them(shared_traces: Path) -> None:
    """In backward of a dispatch, the kernel that combines runs."""
    (rank,) = read_run(shared_traces / "judged" / "moe-dualpipe-deepep").ranks
    names = {unit.unit: unit.module for unit in rank.units}
    found = Counter((names[call.unit or 0], call.unit_phase, call.op) for call in rank.calls)
    ways = {Phase.FORWARD: ("dispatch", "combine"), Phase.BACKWARD: ("combine", "dispatch")}
    assert found == {
        (unit, phase, op): 4
        for phase, kernels in ways.items()
        for unit, kernel in zip(("dispatch", "combine"), kernels, strict=True)
        for op in (kernel, "notify")
    }
