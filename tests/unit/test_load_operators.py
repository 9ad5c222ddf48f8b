"""Which operators computed on a CPU: each once and as a whole, by hand-made nests and by torch's own file."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.sources import find_traces
from ddptrace.load.windows.cpu_compute import operator_work, thread_ranges

Ops = list[tuple[str, int, int]]


def operators_of(path: Path, threads: frozenset[int]) -> Ops:
    events = read_kineto(path)
    work = operator_work(events, thread_ranges(events, threads))
    columns = zip(work.name.tolist(), work.begin_at_ns.tolist(), work.end_at_ns.tolist(), strict=True)
    return [(work.names[name], begin, end) for name, begin, end in columns]


@pytest.fixture
def operators(tmp_path: Path) -> Callable[..., Ops]:
    """`operators((name, begin, end[, tid]), …)`: those of thread 1 and the engine's."""

    def run(*ops: Any) -> Ops:
        events = [
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid[0] if tid else 1, "ts": begin / 1000,
             "dur": (end - begin) / 1000}
            for name, begin, end, *tid in ops
        ]  # fmt: skip
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return operators_of(path, frozenset({1}))

    return run


def test_an_operator_is_the_outermost_range_that_computes_for_half_of_its_time_itself(
    operators: Callable[..., Ops],
) -> None:
    ops = (
        ("aten::linear", 0, 1000), ("aten::addmm", 10, 990), ("aten::expand", 20, 120), ("aten::copy_", 130, 500),
        ("aten::relu", 1000, 1100), ("aten::clamp_min", 1001, 1099),
    )  # fmt: skip
    assert operators(*ops) == [("aten::addmm", 10, 990), ("aten::clamp_min", 1001, 1099)]


def test_half_is_enough_and_less_leaves_the_ones_inside(operators: Callable[..., Ops]) -> None:
    assert operators(("aten::a", 0, 100), ("aten::b", 0, 50)) == [("aten::a", 0, 100)]
    assert operators(("aten::a", 0, 100), ("aten::b", 0, 51)) == [("aten::b", 0, 51)]


def test_neither_communication_nor_the_engine_nor_a_function_of_pythons_is_an_operator(
    operators: Callable[..., Ops],
) -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    ops = (
        (engine, 0, 300, 2), ("MmBackward0", 10, 290, 2), ("aten::mm", 20, 100, 2), ("MyFunction", 300, 900),
        ("c10d::allreduce_", 1000, 1100), ("aten::copy_", 1010, 1090),
    )  # fmt: skip
    assert operators(*ops) == [("aten::mm", 20, 100)]


def test_other_threads_and_empty_files_have_none(operators: Callable[..., Ops]) -> None:
    assert operators(("aten::mm", 0, 10, 7)) == []
    assert operators() == []


def test_a_real_window_shows_each_product_once(tmp_path: Path) -> None:
    matrix, activities = torch.randn(96, 96), [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(5):
            torch.nn.functional.linear(matrix, matrix, matrix[0])
    profiler.export_chrome_trace(str(tmp_path / "kineto.json"))
    found = operators_of(tmp_path / "kineto.json", frozenset({threading.get_native_id()}))
    assert Counter(name for name, _, _ in found)["aten::addmm"] == 5
    assert "aten::linear" not in {name for name, _, _ in found}
    assert all(end <= begin for (_, _, end), (_, begin, _) in itertools.pairwise(found))


def test_the_list_that_prof_events_exports_is_left_out_in_a_sentence(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(3) + 1
    events = profiler.events()
    assert events is not None
    events.export_chrome_trace(str(tmp_path / "rank-0.json"))
    with pytest.raises(RunDirectoryError, match=r"rank-0.json is what EventList.export_chrome_trace writes: it has no"):
        find_traces([tmp_path])
