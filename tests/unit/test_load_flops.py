"""FLOPs from the shapes in a file: as torch counts them, and none where the shapes do not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_files import Event, event, kernel, launch, op, write
from torch.utils.flop_counter import flop_registry

import ddptrace
from ddptrace.load.foreign.trace import Trace
from ddptrace.load.kineto.flops import COUNTED, LARGEST, flops_of
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.tables import Counts, Operation

FLOAT = "float"
CASES: dict[str, list[list[list[int]]]] = {
    "aten::mm": [[[3, 5], [5, 7]], [[1, 1], [1, 1]], [[0, 5], [5, 7]]],
    "aten::addmm": [[[7], [3, 5], [5, 7]]],
    "aten::bmm": [[[2, 3, 5], [2, 5, 7]]],
    "aten::baddbmm": [[[2, 3, 7], [2, 3, 5], [2, 5, 7]]],
    "aten::_scaled_mm": [[[16, 32], [32, 48], [], []]],
    **{
        f"aten::_scaled_dot_product_{kind}_attention": [
            [[2, 8, 33, 64], [2, 8, 65, 64], [2, 8, 65, 32]],
            [[2, 8, 33, 64], [2, 2, 65, 64], [2, 2, 65, 64]],
        ]
        for kind in ("flash", "efficient", "cudnn")
    },
    **{
        f"aten::_scaled_dot_product_{kind}_attention_backward": [
            [[2, 8, 33, 32], [2, 8, 33, 64], [2, 8, 65, 64], [2, 8, 65, 32]],
        ]
        for kind in ("flash", "efficient", "cudnn")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    formula = flop_registry[getattr(torch.ops.aten, name.removeprefix("aten::"))]
    for dims in CASES[name]:
        shapes = [torch.empty(shape, device="meta") for shape in dims]
        expected = formula(*shapes, out_val=None)
        assert flops_of(name, dims, [FLOAT] * len(dims)).flops == expected


def test_every_formula_is_checked_against_torch() -> None:
    assert set(CASES) == {name for name, counted in COUNTED.items() if counted.formula} - {
        "aten::_int_mm",
        "aten::_addmm_activation",  # torch has no formula for these two
    }


@pytest.mark.parametrize(
    "dims",
    [None, "x", [], [[3, 5]], [[3, 5], [4, 7]], [[3, 5, 1], [5, 7]], [[3, -5], [-5, 7]], [[3, True], [1, 7]],
     [[[3, 5]], [[5, 7]]], [["3", 5], [5, 7]], [[2**40, 2**40], [2**40, 2**40]], [None, None]],
)  # fmt: skip
def test_shapes_that_do_not_fit_give_no_flops(dims: Any) -> None:
    assert flops_of("aten::mm", dims, ["float", "float"]).flops is None


def counts_of(folder: Path, *events: Event) -> Counts:
    trace = Trace(read_kineto(write(folder / "trace.json", events)), ())
    work = trace.device.table()
    assert work is not None and work.counts is not None
    return work.counts


def addmm(begin: float, end: float, **args: Any) -> Event:
    given = {"Input Dims": [[7], [3, 5], [5, 7]], "Input type": [FLOAT, "c10::BFloat16", "c10::BFloat16"]}
    return op("aten::addmm", begin, end, **(given | args))


def test_the_flops_of_an_operator_stand_at_the_longest_of_its_kernels(tmp_path: Path) -> None:
    counts = counts_of(
        tmp_path,
        op("aten::linear", 0, 30, **{"Input Dims": [[3, 5], [7, 5], [7]]}),
        addmm(1, 29),
        *(launch(nth, 2 * nth, 2 * nth + 1) for nth in (1, 2, 3)),
        kernel("splitK", 1, 40, 42),
        kernel("gemm", 2, 42, 50),
        kernel("reduce", 3, 50, 51),
        launch(4, 32, 33),
        kernel("add", 4, 51, 60),
    )
    assert counts.flops.tolist() == [0, 2 * 3 * 5 * 7, 0, -1]
    assert counts.operation.tolist() == [Operation.MATRIX] * 3 + [Operation.NONE]
    assert [counts.dtypes[at] if at >= 0 else "" for at in counts.dtype] == ["c10::BFloat16"] * 3 + [""]


def test_without_shapes_the_operator_is_known_and_its_flops_are_not(tmp_path: Path) -> None:
    events = op("aten::addmm", 1, 29), launch(1, 2, 3), kernel("gemm", 1, 40, 42)
    counts = counts_of(tmp_path, *events)
    assert counts.operation.tolist() == [Operation.MATRIX] and counts.flops.tolist() == [-1]


def test_the_bytes_of_a_copy_are_those_that_the_file_tells(tmp_path: Path) -> None:
    def copied(at: int, **args: Any) -> Event:
        return event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 7, at, at + 1, pid=0, **args)

    said = copied(0, bytes=4096), copied(2), copied(4, bytes="x"), copied(6, bytes=-1), copied(8, bytes="12")
    assert counts_of(tmp_path, *said).nbytes.tolist() == [4096, -1, -1, -1, 12]


def test_what_the_cache_gives_back_is_what_was_read(tmp_path: Path) -> None:
    huge = {"Input Dims": [[7], [LARGEST, 5], [5, 7]]}
    copied = event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 60, 70, pid=0, bytes=12)
    path = write(tmp_path / "trace.json", [addmm(0, 9), addmm(10, 19), addmm(20, 29, **huge), copied])
    first, again = (read_kineto(path, tmp_path / "cache") for _ in range(2))
    assert first.flops == again.flops and len(first.flops) == 3
    assert first.nbytes == again.nbytes == {3: 12}


def test_a_run_on_the_cpu_has_no_kernels_and_no_copies(shared_traces: Path) -> None:
    result = ddptrace.analyze(shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz", jobs=1)
    assert not result.kernels and not result.copies
