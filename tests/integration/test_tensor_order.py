"""Tensor parallelism on real ranks: results that are needed at once, and results that are not."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import UnitRow
from ddptrace.analysis.units.digest import is_needed_at_once, tensor_cost
from ddptrace.render.terminal import summary_text
from tests.launch import torchrun

STEPS = 5
BETWEEN_NS = 15_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tensor")
    torchrun("tensor_order.py", out)
    return out


def waiting_rows(result: Result) -> list[UnitRow]:
    """Those of the rank that waits for the other one in each step; the first step prepares."""
    return [row for row in result.units if row.kind == "tensor" and row.rank == 0 and row.step]


@pytest.mark.parametrize("name", ["nature", "order"])
def test_each_region_is_a_unit_of_its_module_and_mesh_dimension(folder: Path, name: str) -> None:
    rows = waiting_rows(ddptrace.analyze(folder / name))
    assert [row.step for row in rows] == list(range(1, STEPS))
    assert {(row.name, row.dimension, row.phase, row.role) for row in rows} == {("0", "tp", "forward", "all_reduce")}
    assert all((row.needed_at_ns or 0) >= row.launch_at_ns for row in rows)


@pytest.mark.alone
def test_what_is_needed_at_once_is_exposed_by_nature(folder: Path) -> None:
    result = ddptrace.analyze(folder / "nature")
    assert is_needed_at_once(waiting_rows(result))
    cost = tensor_cost(result)
    assert cost is not None and cost.by_nature_ns > cost.by_order_ns
    assert cost.by_nature_ns + cost.by_order_ns == pytest.approx(cost.exposed_ns, abs=2)


@pytest.mark.alone
def test_what_computes_meanwhile_for_too_short_is_exposed_by_order(folder: Path) -> None:
    result = ddptrace.analyze(folder / "order")
    rows = waiting_rows(result)
    assert median(row.slack_ns or 0 for row in rows) >= BETWEEN_NS and not is_needed_at_once(rows)
    said = summary_text(result)
    assert "by order, what computes meanwhile is too short" in said
