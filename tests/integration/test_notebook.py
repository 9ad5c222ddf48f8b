"""A real notebook, executed by a real kernel: results, tables and figures show themselves."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Record, need
from tests.launch import ROOT

CELLS = (
    "import ddptrace\nresult = ddptrace.analyze('run')\nresult",
    "result.buckets",
    "ddptrace.figures.timeline(result)",
    "ddptrace.figures.buckets(result, dark=True)",
    "result.steps.to_pandas().groupby('rank').window_ns.sum()",
    "result.rpcs",
)


@pytest.fixture(scope="module")
def outputs(record: Record, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each cell shows, by media type."""
    need(
        all(map(find_spec, ("nbclient", "nbformat", "ipykernel", "pandas"))),
        "nbclient, ipykernel and pandas (pip install nbclient ipykernel pandas)",
    )
    folder = tmp_path_factory.mktemp("notebook")
    record(folder / "run", "ddp.py", "--profile")
    return executed(folder)


def executed(folder: Path) -> list[dict[str, Any]]:
    new = importlib.import_module("nbformat.v4")
    setup = new.new_code_cell(f"import sys; sys.path.insert(0, {str(ROOT)!r})")
    notebook = new.new_notebook(cells=[setup, *map(new.new_code_cell, CELLS)])
    client = importlib.import_module("nbclient").NotebookClient
    client(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    shown = [[one.data for one in cell.outputs if "data" in one] for cell in notebook.cells[1:]]
    assert all(len(one) == 1 for one in shown), shown
    return [dict(one[0]) for one in shown]


def test_a_result_shows_its_typical_step_and_its_findings(outputs: list[dict[str, Any]]) -> None:
    assert outputs[0]["text/plain"].startswith("Result of run ")
    assert ">compute</td>" in outputs[0]["text/html"]
    assert "<code>buckets</code>" in outputs[0]["text/html"]


def test_a_table_shows_its_rows(outputs: list[dict[str, Any]]) -> None:
    assert "<th>exposed_charged_ns</th>" in outputs[1]["text/html"]
    assert "5.weight" in outputs[1]["text/html"]
    # AND an empty one its columns
    assert "<th>caller</th>" in outputs[5]["text/html"]
    assert "0 RpcRow" in outputs[5]["text/html"]


@pytest.mark.parametrize(("cell", "page"), [(2, "#ffffff"), (3, "#1b2229")])
def test_a_figure_shows_itself(outputs: list[dict[str, Any]], cell: int, page: str) -> None:
    figure = outputs[cell]["application/vnd.plotly.v1+json"]
    assert len(figure["data"]) >= 2
    assert figure["layout"]["template"]["layout"]["paper_bgcolor"] == page


def test_nanoseconds_stay_whole_in_a_frame(outputs: list[dict[str, Any]]) -> None:
    assert "dtype: int64" in outputs[4]["text/plain"]
