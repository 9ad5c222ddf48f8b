"""`ddptrace tables` writes every table in a form that others read, with the rows of `ddptrace.analyze`."""

from __future__ import annotations

import csv
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import ddptrace
from ddptrace.analysis.result import TABLES
from ddptrace.cli import main
from tests.conftest import ROOT, need

RUN = ROOT / "tests" / "recorded" / "on_a_device" / "slow"


def tables(format: str, output: Path) -> Result:
    return CliRunner().invoke(main, ["tables", str(RUN), "--format", format, "--output", str(output)])


@pytest.fixture(scope="module")
def analyzed() -> ddptrace.Result:
    return ddptrace.analyze(RUN)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_every_table_has_a_file_and_each_with_rows_is_named(
    tmp_path: Path, analyzed: ddptrace.Result, format: str
) -> None:
    done = tables(format, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.{format}" for name in TABLES}
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        str(tmp_path / "out" / f"{name}.{format}") for name in TABLES if len(getattr(analyzed, name))
    ]


def test_json_lines_are_the_rows_of_the_json(tmp_path: Path, analyzed: ddptrace.Result) -> None:
    tables("jsonl", tmp_path)
    for name in TABLES:
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert rows == json.loads(json.dumps(getattr(analyzed, name).to_dicts()))


def test_csv_has_names_above_rows_and_nothing_where_nothing_was_measured(
    tmp_path: Path, analyzed: ddptrace.Result
) -> None:
    tables("csv", tmp_path)
    with (tmp_path / "buckets.csv").open(newline="") as file:
        names, *rows = csv.reader(file)
    assert tuple(names) == analyzed.buckets.columns and len(rows) == len(analyzed.buckets)
    for row, bucket in zip(rows, analyzed.buckets, strict=True):
        found = dict(zip(names, row, strict=True))
        assert found["launch_at_ns"] == str(bucket.launch_at_ns)
        assert found["hook"] == (bucket.hook or "")
        assert found["evidence"] == bucket.evidence.value
        assert tuple(json.loads(found["parameters"])) == bucket.parameters
    assert (tmp_path / "rpcs.csv").read_text().strip() == ",".join(analyzed.rpcs.columns)


def test_parquet_has_the_types_of_the_tables(tmp_path: Path, analyzed: ddptrace.Result) -> None:
    tables("parquet", tmp_path)
    for name in TABLES:
        assert parquet.read_table(tmp_path / f"{name}.parquet").equals(getattr(analyzed, name).to_arrow())


def test_duckdb_and_polars_read_the_files(tmp_path: Path, analyzed: ddptrace.Result) -> None:
    need(find_spec("duckdb") and find_spec("polars"), "duckdb and polars (pip install duckdb polars)")
    import duckdb
    import polars

    expected = sum(step.window_ns for step in analyzed.steps)
    for format in ("csv", "jsonl", "parquet"):
        tables(format, tmp_path)
        assert duckdb.sql(f"select sum(window_ns) from '{tmp_path}/steps.{format}'").fetchall() == [(expected,)]
    assert polars.read_parquet(tmp_path / "steps.parquet")["window_ns"].sum() == expected


def test_parquet_without_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = tables("parquet", tmp_path)
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: this form of a table needs pyarrow, which is not installed: pip install 'ddptrace[arrow]'\n"
    )
    assert not list(tmp_path.iterdir())
