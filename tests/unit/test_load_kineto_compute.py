"""When a CPU rank computed: by hand-made nests of operators, and against a naive second program on a real file."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.windows.cpu_compute import cpu_compute

TRAINING = frozenset({1})
Spans = list[tuple[int, int]]


@pytest.fixture
def compute(tmp_path: Path) -> Callable[..., Spans]:
    """`compute((name, begin, end[, tid]), …)` in nanoseconds: when thread 1 and those of the engine computed."""

    def run(*ops: Any) -> Spans:
        events = [
            {"ph": "X", "cat": "user_annotation" if name.startswith("gloo:") else "cpu_op", "name": name, "pid": 1,
             "tid": tid[0] if tid else 1, "ts": begin / 1000, "dur": (end - begin) / 1000}
            for name, begin, end, *tid in ops
        ]  # fmt: skip
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return [(int(begin), int(end)) for begin, end in cpu_compute(read_kineto(path), TRAINING)]

    return run


def test_an_operator_computes_in_its_own_time_and_in_those_inside_it(compute: Callable[..., Spans]) -> None:
    ops = ("aten::linear", 0, 100), ("aten::addmm", 10, 90), ("aten::copy_", 20, 30), ("aten::relu", 100, 110)
    assert compute(*ops) == [(0, 110)]


def test_the_engine_and_its_hooks_do_not_compute_but_the_operators_in_them_do(compute: Callable[..., Spans]) -> None:
    engine = "autograd::engine::evaluate_function: "
    ops = (
        (engine + "AddmmBackward0", 0, 50), ("AddmmBackward0", 5, 45), ("aten::mm", 10, 40), ("detach", 12, 14),
        (engine + "torch::autograd::AccumulateGrad", 60, 900), ("torch::autograd::AccumulateGrad", 61, 890),
        ("aten::add_", 62, 70),
    )  # fmt: skip
    assert compute(*ops) == [(10, 40), (62, 70)]


def test_a_python_function_that_sleeps_does_not_compute(compute: Callable[..., Spans]) -> None:
    assert compute(("MyFunction", 0, 1000), ("aten::clone", 900, 950)) == [(900, 950)]


def test_launching_and_awaiting_a_collective_is_not_compute(compute: Callable[..., Spans]) -> None:
    ops = (
        ("c10d::allreduce_", 0, 100), ("ddptrace#1", 10, 90), ("aten::copy_", 20, 30),
        ("_c10d_functional::wait_tensor", 200, 900), ("record_param_comms", 910, 920), ("aten::view", 912, 915),
    )  # fmt: skip
    assert compute(*ops) == []


def test_an_operator_that_communicates_inside_does_not_compute_in_its_own_time(compute: Callable[..., Spans]) -> None:
    ops = (
        ("mylib::exchange", 0, 1000),
        ("aten::cat", 10, 20),
        ("c10d::alltoall_", 100, 150),
        ("mylib::other", 1000, 1010),
    )
    assert compute(*ops) == [(10, 20), (1000, 1010)]


def test_a_compiled_graph_computes_in_its_own_time_and_waits_in_its_operators(compute: Callable[..., Spans]) -> None:
    ops = (
        ("Torch-Compiled Region: 0/0", 0, 100), ("## Call CompiledFxGraph fo63 ##", 10, 90), ("aten::mm", 20, 30),
        ("_c10d_functional::wait_tensor", 40, 80),
    )  # fmt: skip
    assert compute(*ops) == [(10, 40), (80, 90)]


def test_only_training_threads_count_and_those_that_ran_the_engine(compute: Callable[..., Spans]) -> None:
    ops = (
        ("aten::mm", 0, 10, 1), ("aten::mm", 5, 20, 2), ("autograd::engine::evaluate_function: A", 4, 21, 2),
        ("aten::copy_", 30, 40, 3), ("gloo:all_gather", 25, 45, 3), ("gloo:send", 50, 60, 1),
    )  # fmt: skip
    assert compute(*ops) == [(0, 20)]


def test_an_operator_that_outlives_its_parent_by_rounding_ends_with_it(compute: Callable[..., Spans]) -> None:
    assert compute(("MyFunction", 0, 100), ("aten::mm", 50, 101), ("AnotherFunction", 100, 200)) == [(50, 100)]


def test_operators_without_length_are_nothing(compute: Callable[..., Spans]) -> None:
    assert compute(("aten::mm", 5, 5), ("aten::mm", 5, 9), ("aten::view", 5, 5)) == [(5, 9)]


class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return gradients[0]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real window of one process: layers, an optimizer, a sleeping function and a sleeping hook."""
    first = nn.Linear(64, 64)
    hook: Any = first.weight.register_post_accumulate_grad_hook
    hook(lambda parameter: time.sleep(0.002))
    model = nn.Sequential(first, nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    path = tmp_path_factory.mktemp("window") / "kineto.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            Sleepy.apply(model(torch.randn(32, 64))).pow(2).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    profiler.export_chrome_trace(str(path))
    return path


def read_naively(path: Path) -> list[tuple[int, int, str]]:
    """(begin, end, name) of the operators, outer before inner. Digits by `decimal`, nothing shared with the reader."""
    content = json.loads(path.read_text(), parse_float=Decimal, parse_int=Decimal)
    base = int(content["baseTimeNanoseconds"])
    found = [
        (base + int(event["ts"] * 1000), base + int(event["ts"] * 1000) + int(event["dur"] * 1000), event["name"])
        for event in content["traceEvents"]
        if event.get("cat") == "cpu_op"
    ]
    return sorted(found, key=lambda op: (op[0], -op[1]))


def naive_compute(ops: list[tuple[int, int, str]]) -> Spans:
    """Between each two neighbouring instants, ask which operators hold the stretch. Quadratic, and plain."""
    spans: Spans = []
    instants = sorted({at for begin, end, _ in ops for at in (begin, end)})
    for low, high in itertools.pairwise(instants):
        holding = [name for begin, end, name in ops if begin <= low and high <= end]
        named = [name for name in holding if "::" in name]
        if named and not named[-1].startswith(("autograd::", "torch::autograd::")):
            if spans and spans[-1][1] == low:
                spans[-1] = (spans[-1][0], high)
            else:
                spans.append((low, high))
    return spans


def test_a_real_windows_compute_equals_a_naive_second_program_exactly(recorded: Path) -> None:
    ops = read_naively(recorded)
    found = cpu_compute(read_kineto(recorded), frozenset({threading.get_native_id()}))
    assert [(int(begin), int(end)) for begin, end in found] == naive_compute(ops)
    assert len(found) > 50


def test_a_real_windows_compute_is_the_union_of_its_aten_operators_and_leaves_the_sleeps_out(recorded: Path) -> None:
    ops = read_naively(recorded)
    found = cpu_compute(read_kineto(recorded), frozenset({threading.get_native_id()}))
    compute_ns = int((found[:, 1] - found[:, 0]).sum())
    reach = aten_ns = 0
    for begin, end, name in ops:
        if name.startswith("aten::"):
            aten_ns += max(0, end - max(begin, reach))
            reach = max(reach, end)
    assert aten_ns * 0.98 <= compute_ns <= aten_ns * 1.02
    whole_ns = max(end for _, end, _ in ops) - ops[0][0]
    assert compute_ns < whole_ns - 3 * 3 * 2_000_000
