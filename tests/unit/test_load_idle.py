"""What held the host while the device was idle: it adds up to the idle time, on real files and made ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from foreign_files import ENGINE, MAIN, Event, event, kernel, launch, op, said, write
from hypothesis import given, settings
from hypothesis import strategies as st

import ddptrace
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.tables import DeviceIdle, IdleCause
from ddptrace.load.windows.idle import device_idle

US = 1000  # ns


def idle_of(folder: Path, *events: Event) -> DeviceIdle:
    trace = Trace(read_kineto(write(folder / "trace.json", events)), ())
    found = device_idle(trace.events, trace.device, trace.main_lane, trace.begin_at_ns, trace.end_at_ns)
    assert found is not None
    return found


def caused(idle: DeviceIdle) -> dict[tuple[str, str], float]:
    """Microseconds by cause and name."""
    found: Counter[tuple[str, str]] = Counter()
    for cause, name, begin, end in zip(idle.cause, idle.name, idle.begin_at_ns, idle.end_at_ns, strict=True):
        found[IdleCause(cause).word, idle.names[name] if name >= 0 else ""] += int(end - begin)
    return {key: ns / US for key, ns in found.items()}


def test_a_gap_is_cut_where_the_innermost_range_changes(tmp_path: Path) -> None:
    idle = idle_of(
        tmp_path,
        launch(1, 0, 2),
        kernel("gemm", 1, 5, 10),
        op("aten::to", 20, 50),
        event("cuda_runtime", "cudaMemcpyAsync", MAIN, 25, 45, correlation=3),
        launch(2, 60, 64),
        kernel("gemm", 2, 70, 80),
    )
    assert caused(idle) == {
        ("launch", "cudaLaunchKernel"): 2 + 4,
        ("queued", ""): 3 + 6,
        ("nothing", ""): 10 + 10,
        ("operator", "aten::to"): 10,
        ("copy", "cudaMemcpyAsync"): 20,
    }
    operators = {idle.names[name] for name in idle.operator.tolist() if name >= 0}
    assert operators == {"aten::to"}


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("cudaDeviceSynchronize", "synchronize"),
        ("hipStreamSynchronize", "synchronize"),
        ("cudaEventQuery", "synchronize"),
        ("cudaMemcpyAsync", "copy"),
        ("hipMemcpyWithStream", "copy"),
        ("hipFree", "allocate"),
        ("cudaMalloc", "allocate"),
        ("cudaHostAlloc", "allocate"),
        ("cuMemCreate", "allocate"),
        ("cudaGraphLaunch", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaFuncGetAttributes", "runtime"),
    ],
)
def test_a_call_of_the_runtime_is_known_by_its_name(tmp_path: Path, call: str, cause: str) -> None:
    held = event("cuda_runtime", call, MAIN, 20, 50)
    idle = idle_of(tmp_path, launch(1, 0, 2), kernel("a", 1, 3, 10), held, launch(2, 60, 61), kernel("b", 2, 61, 70))
    assert caused(idle)[cause, call] == 30


def test_what_runs_inside_a_data_loader_or_item_belongs_to_it(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    idle = idle_of(
        tmp_path,
        launch(1, 0, 2),
        kernel("a", 1, 3, 10),
        said(loader, 12, 40),
        op("aten::stack", 15, 35),
        op("aten::item", 40, 52),
        event("cuda_runtime", "cudaStreamSynchronize", MAIN, 42, 50),
        launch(2, 60, 61),
        kernel("b", 2, 61, 70),
    )
    told = caused(idle)
    assert told["data", loader] == 28 and told["synchronize", "aten::item"] == 12
    assert ("operator", "aten::stack") not in told


def test_what_follows_a_wait_belongs_to_it_for_as_long_as_the_host_waited(tmp_path: Path) -> None:
    """The host waits from 20 on in `.item()`, 30 µs before the device runs dry: its work until 80 is the wait's."""
    idle = idle_of(
        tmp_path,
        launch(1, 0, 2),
        kernel("a", 1, 3, 50),
        op("aten::item", 20, 54),
        op("aten::mm", 60, 90),
        launch(2, 88, 90),
        kernel("b", 2, 92, 95),
    )
    assert caused(idle) == {
        ("launch", "cudaLaunchKernel"): 2 + 2,
        ("queued", ""): 1 + 2,
        ("synchronize", "aten::item"): 30,
        ("operator", "aten::mm"): 8,
    }


def test_a_wait_that_begins_when_the_device_is_idle_already_owns_nothing_after_it(tmp_path: Path) -> None:
    item, work = op("aten::item", 20, 54), op("aten::mm", 60, 90)
    idle = idle_of(
        tmp_path, launch(1, 0, 2), kernel("a", 1, 3, 15), item, work, launch(2, 88, 90), kernel("b", 2, 92, 95)
    )
    told = caused(idle)
    assert told["synchronize", "aten::item"] == 34 and told["operator", "aten::mm"] == 28


def test_a_data_loader_after_a_wait_keeps_its_time(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    item, fetch = op("aten::item", 5, 52), said(loader, 52, 80)
    idle = idle_of(
        tmp_path, launch(1, 0, 2), kernel("a", 1, 3, 50), item, fetch, launch(2, 88, 90), kernel("b", 2, 92, 95)
    )
    assert caused(idle)["data", loader] == 28


@pytest.mark.parametrize(("around", "cause"), [("aten::copy_", "copy"), ("aten::mm", "synchronize")])
def test_a_synchronization_inside_a_copy_is_the_copys(tmp_path: Path, around: str, cause: str) -> None:
    held = op(around, 15, 55), event("cuda_runtime", "cudaStreamSynchronize", MAIN, 20, 50)
    idle = idle_of(tmp_path, launch(1, 0, 2), kernel("a", 1, 3, 10), *held, launch(2, 60, 61), kernel("b", 2, 61, 70))
    assert caused(idle)[cause, "cudaStreamSynchronize"] == 30


def test_a_loaders_own_range_names_it_rather_than_the_frame_around(tmp_path: Path) -> None:
    loader, frame = (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "torch/utils/data/dataloader.py(7): __next__",
    )
    ranges = event("python_function", frame, MAIN, 12, 42), said(loader, 13, 41)
    idle = idle_of(tmp_path, launch(1, 0, 2), kernel("a", 1, 3, 10), *ranges, launch(2, 60, 61), kernel("b", 2, 61, 70))
    assert caused(idle)["data", loader] == 28 and caused(idle)["data", frame] == 2


def test_the_thread_that_launches_the_next_work_is_asked(tmp_path: Path) -> None:
    idle = idle_of(
        tmp_path,
        launch(1, 0, 2),
        kernel("a", 1, 3, 10),
        event("cuda_runtime", "cudaDeviceSynchronize", MAIN, 10, 60),
        op("AddmmBackward0", 15, 55, ENGINE),
        launch(2, 58, 60, ENGINE),
        kernel("b", 2, 60, 70),
    )
    told = caused(idle)
    assert told["operator", "AddmmBackward0"] == 40 and ("synchronize", "cudaDeviceSynchronize") not in told


def test_while_work_is_queued_the_host_is_not_to_blame_wherever_it_is(tmp_path: Path) -> None:
    others = op("aten::mm", 12, 40), event("cuda_runtime", "cudaMemcpyAsync", MAIN, 40, 55)
    idle = idle_of(tmp_path, launch(1, 0, 2), launch(2, 2, 4), kernel("a", 1, 5, 10), *others, kernel("b", 2, 60, 70))
    told = caused(idle)
    assert told["queued", "aten::mm"] == 28 and told["queued", "cudaMemcpyAsync"] == 15
    assert {cause for cause, _ in told} == {"launch", "queued"}


ranges = st.tuples(
    st.sampled_from(
        ["aten::mm", "aten::item", "enumerate(DataLoader)#x", "ProfilerStep#3", "cudaFree", "cudaMemcpyAsync"]
    ),
    st.sampled_from([MAIN, ENGINE]),
    st.integers(0, 300),
    st.integers(0, 90),
)
works = st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 40), st.sampled_from([MAIN, ENGINE, None]))


@settings(max_examples=150)
@given(st.lists(ranges, max_size=14), st.lists(works, min_size=1, max_size=10))
def test_the_pieces_partition_the_idle_time_exactly(
    held: list[tuple[str, int, int, int]], worked: list[tuple[int, int, int, int | None]]
) -> None:
    events = [
        event("cuda_runtime" if name.startswith("cuda") else "cpu_op", name, tid, begin, begin + length)
        for name, tid, begin, length in held
    ]
    for correlation, (at, delay, length, tid) in enumerate(worked, start=1):
        events += [] if tid is None else [launch(correlation, at, at + 1, tid)]
        events.append(kernel("gemm", correlation, at + 1 + delay, at + 1 + delay + length))
    with TemporaryDirectory() as folder:
        idle = idle_of(Path(folder), *events)
    busy = np.zeros(500 * US, np.bool_)
    for at, delay, length, _ in worked:
        busy[(at + 1 + delay) * US : (at + 1 + delay + length) * US] = True
    begin, end = (round(edge) for edge in (min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)))
    assert int((idle.end_at_ns - idle.begin_at_ns).sum()) == int((~busy[begin * US : end * US]).sum())
    assert (idle.begin_at_ns[1:] >= idle.end_at_ns[:-1]).all() and (idle.end_at_ns > idle.begin_at_ns).all()
    for gap, at, until in zip(idle.gap, idle.begin_at_ns, idle.end_at_ns, strict=True):
        assert idle.gaps[gap, 0] <= at and until <= idle.gaps[gap, 1]


JUDGED = {
    "data-bound-owlv2": ("data", 0.96),
    "data-bound-resnet50-0workers": ("data", 0.73),
    "hipfree-resnet18": ("allocate", 0.93),
}


@pytest.mark.parametrize("folder", JUDGED)
def test_the_largest_cause_of_a_real_run_is_the_one_that_an_engineer_finds(shared_traces: Path, folder: str) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    total: Counter[str] = Counter()
    for row in result.idle:
        if row.step is not None:
            total[row.cause] += row.idle_ns
    [(cause, idle_ns)] = total.most_common(1)
    assert cause == JUDGED[folder][0]
    assert idle_ns / total.total() == pytest.approx(JUDGED[folder][1], abs=0.04)


@pytest.mark.parametrize("folder", [*JUDGED, "8ranks-zero-h100", "dlrm-blocked-copies", "moe-dualpipe-deepep"])
def test_the_causes_of_each_step_add_up_to_its_idle_time(shared_traces: Path, folder: str) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    found: dict[tuple[int, int | None], int] = defaultdict(int)
    for row in result.idle:
        found[row.rank, row.step] += row.idle_ns
    assert len(result.launches)
    assert {(row.rank, row.step): row.idle_ns for row in result.launches if row.idle_ns} == {
        key: ns for key, ns in found.items() if key[1] is not None
    }


def test_a_run_on_the_cpu_has_no_idle_device(shared_traces: Path) -> None:
    assert not ddptrace.analyze(shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz", jobs=1).idle


VERDICTS = {
    "data-bound-owlv2": "data-bound",
    "data-bound-resnet50-0workers": "data-bound",
    "hipfree-resnet18": "allocation-bound",
    "tp8-vllm-b200": "launch-bound",
    "no-steps-sglang": "idle-while-queued",
    "dlrm-blocked-copies": "blocking-copies",
}
IDLE_CODES = frozenset({*VERDICTS.values(), "blocking-copies", "host-synchronizes", "garbage-collection"})


@pytest.mark.parametrize("folder", VERDICTS)
def test_the_verdict_follows_what_held_the_host(shared_traces: Path, folder: str) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    assert {finding.code for finding in result.findings} & IDLE_CODES == {VERDICTS[folder]}


def test_a_device_that_is_busy_has_no_such_verdict(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / "moe-dualpipe-deepep", jobs=1)
    assert not {finding.code for finding in result.findings} & IDLE_CODES
