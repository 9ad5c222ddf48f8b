"""What the device did, joined to its launches: exact on every real file, and case by case on hand-made ones."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import ENGINE, MAIN, Event, event, kernel, launch, node, op, said, write
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.tables import DeviceWork, Work
from ddptrace.load.windows.device import KinetoWork
from ddptrace.load.windows.nesting import NOTHING, Nest

Spans = list[tuple[int, int]]


def union(spans: Spans) -> Spans:
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > begin:
            joined.append((begin, end))
    return joined


def length(spans: Spans) -> int:
    return sum(end - begin for begin, end in union(spans))


def population(work: DeviceWork, chosen: Any) -> dict[str, int]:
    """The numbers of `expected.json`, in nanoseconds, by plain loops. What both cover: a + b - (a or b)."""
    rows = zip(work.kind.tolist(), work.begin_at_ns.tolist(), work.end_at_ns.tolist(), chosen.tolist(), strict=True)
    spans: dict[int, Spans] = {kind: [] for kind in Work}
    for kind, begin, end, is_chosen in rows:
        if is_chosen:
            spans[kind].append((begin, end))
    every = [span for some in spans.values() for span in some]
    span = max(end for _, end in every) - min(begin for begin, _ in every)
    comp, comm, mem = (length(spans[kind]) for kind in (Work.COMPUTE, Work.COMM, Work.MEMORY))
    overlap = comp + comm - length(spans[Work.COMPUTE] + spans[Work.COMM])
    return {
        "span": span, "idle": span - length(every), "comp": comp, "comm": comm, "mem": mem, "overlap": overlap,
        "exposed_comm": comm - overlap,
    }  # fmt: skip


def test_both_populations_of_every_real_file_are_exact_to_the_nanosecond(shared_traces: Path) -> None:
    expected = json.loads((shared_traces / "expected.json").read_text())
    for file, numbers in expected.items():
        work = KinetoWork.of(read_kineto(shared_traces / file)).table()
        assert work is not None
        assert (len(work.kind), int(work.launched.sum())) == (numbers["gpu_events"], numbers["gpu_events_with_launch"])
        for name, chosen in (("all", np.ones(len(work.kind), bool)), ("with_launch", work.launched)):
            told = {key: int(Decimal(str(value)) * 1000) for key, value in numbers[name].items() if key[-3:] != "pct"}
            assert population(work, chosen) == told, (file, name)
    assert len(expected) > 12


def table(folder: Path, *events: Event) -> DeviceWork:
    work = KinetoWork.of(read_kineto(write(folder / "a.json", events))).table()
    assert work is not None
    return work


def names(work: DeviceWork, column: Any) -> list[str | None]:
    return [None if index == NOTHING else work.names[index] for index in column.tolist()]


def test_work_is_joined_to_its_launch_by_correlation_and_a_graphs_kernels_share_one(tmp_path: Path) -> None:
    work = table(
        tmp_path,
        launch(5, 1, 3), event("cuda_driver", "cuLaunchKernel", MAIN, 4, 6, correlation=6),
        kernel("a", 5, 10, 20), kernel("b", 5, 20, 30), kernel("c", 6, 30, 40), kernel("d", 7, 40, 50),
        kernel("e", 0, 50, 60), event("gpu_memset", "Memset", "stream 7", 60, 70, pid=0),
        event("cuda_runtime", "cudaEventQuery", MAIN, 7, 8),
    )  # fmt: skip
    assert names(work, work.name) == ["a", "b", "c", "d", "e", "Memset"]
    assert work.launched.tolist() == [True, True, True, False, False, False]
    assert work.launch_begin_at_ns.tolist() == [1000, 1000, 4000, 0, 0, 0]
    assert work.launch_end_at_ns.tolist() == [3000, 3000, 6000, 0, 0, 0]
    assert work.kind.tolist() == [Work.COMPUTE] * 5 + [Work.MEMORY]


RUNTIMES = [
    "cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "hip_runtime", "hip_driver", "mtia_runtime",
    "privateuse1_runtime", "privateuse1_driver",
]  # fmt: skip


@pytest.mark.parametrize("category", RUNTIMES)
def test_a_launch_is_known_whatever_device_it_is_for(tmp_path: Path, category: str) -> None:
    work = table(tmp_path, event(category, "launch", MAIN, 1, 3, correlation=5), kernel("a", 5, 10, 20))
    assert (work.launched.tolist(), work.launch_begin_at_ns.tolist()) == ([True], [1000])


def test_a_stream_is_told_by_device_and_stream_however_the_file_writes_it(tmp_path: Path) -> None:
    work = table(
        tmp_path,
        kernel("a", 1, 1, 2, stream="stream 7"), kernel("b", 2, 2, 3, stream=7), kernel("c", 3, 3, 4, stream=20),
        event("kernel", "d", 7, 4, 5, pid=1),
    )  # fmt: skip
    assert [work.streams[index] for index in work.stream.tolist()] == ["0:7", "0:7", "0:20", "1:7"]


def frame(name: str, begin: float, end: float, tid: Any = MAIN) -> Event:
    return event("python_function", name, tid, begin, end)


def test_a_launch_lies_in_the_innermost_module_and_annotation_and_the_outermost_operator(tmp_path: Path) -> None:
    work = table(
        tmp_path,
        said("ProfilerStep#3", 0, 100), frame("train.py(3): main", 0, 100), frame("nn.Module: Net_0", 1, 90),
        frame("nn.Module: Linear_1", 2, 20), frame("torch/nn/modules/linear.py(1): forward", 3, 19),
        said("## forward ##", 1, 60), op("aten::linear", 4, 18), op("aten::addmm", 5, 17), launch(1, 6, 7),
        op("aten::relu", 25, 35), said("inner", 25, 34), said("ddptrace#8", 26, 33), said("nccl:all_reduce", 27, 32),
        launch(2, 28, 29), launch(3, 95, 96),
        kernel("a", 1, 10, 20), kernel("b", 2, 30, 40), kernel("c", 3, 97, 98), kernel("d", 9, 98, 99),
    )  # fmt: skip
    assert names(work, work.module) == ["Linear_1", "Net_0", None, None]
    assert names(work, work.annotation) == ["## forward ##", "inner", None, None]
    assert names(work, work.operator) == ["aten::linear", "aten::relu", None, None]


def test_only_ranges_of_the_launching_thread_count_and_on_the_engines_the_node_is_outermost(tmp_path: Path) -> None:
    work = table(
        tmp_path, frame("nn.Module: Net_0", 0, 100), said("loop", 0, 100), op("aten::wait", 0, 100), node(10, 30),
        op("AddmmBackward0", 11, 29, ENGINE), op("aten::mm", 12, 28, ENGINE), launch(1, 13, 14, ENGINE),
        kernel("a", 1, 50, 60),
    )  # fmt: skip
    assert names(work, work.operator) == ["autograd::engine::evaluate_function: AddmmBackward0"]
    assert (names(work, work.module), names(work, work.annotation)) == ([None], [None])


def test_old_files_ranges_of_the_loop_are_no_operators(tmp_path: Path) -> None:
    work = table(
        tmp_path, op("ProfilerStep#5", 0, 100), op("Optimizer.step#SGD.step", 10, 50), op("aten::add_", 12, 20),
        launch(1, 13, 14), kernel("a", 1, 30, 40),
    )  # fmt: skip
    assert names(work, work.operator) == ["aten::add_"]
    assert names(work, work.annotation) == ["Optimizer.step#SGD.step"]


def test_a_file_without_device_work_has_no_table(tmp_path: Path) -> None:
    assert KinetoWork.of(read_kineto(write(tmp_path / "a.json", [op("aten::mm", 0, 1)]))).table() is None


@st.composite
def nests(draw: st.DrawFn, begin: int = 0, end: int = 60, depth: int = 4) -> Spans:
    """Ranges that nest, children after their parents; some are empty, some share ends."""
    found: Spans = []
    at = begin
    while at < end and draw(st.booleans()):
        first = draw(st.integers(at, end))
        last = draw(st.integers(first, end))
        found.append((first, last))
        if depth and last - first > 1:
            found += draw(nests(first, last, depth - 1))
        at = last + draw(st.integers(0, 3))
    return found


@settings(max_examples=300, deadline=None)
@given(nests().flatmap(st.permutations), st.lists(st.integers(-5, 65), max_size=20))
def test_the_innermost_range_around_an_instant_is_the_shortest_that_holds_it(spans: Spans, instants: list[int]) -> None:
    begins, ends = (np.array([span[k] for span in spans], np.int64) for k in (0, 1))
    inner = Nest.of(begins, ends).innermost(np.array(instants, np.int64))
    for at, found in zip(instants, inner.tolist(), strict=True):
        holding = [end - begin for begin, end in spans if begin <= at < end]
        assert (spans[found][1] - spans[found][0] if found != NOTHING else None) == min(holding, default=None)
