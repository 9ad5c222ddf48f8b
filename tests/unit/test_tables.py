"""Tables leave ddptrace with their types: whole nanoseconds, and what was not measured as missing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pyarrow
import pytest
from made_device import make_device_result
from made_diff import made_side
from made_meetings import met_result, with_all

from ddptrace.analysis.diff.compare import compare
from ddptrace.analysis.diff.tables import Diff
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.whatif.advise import advise
from ddptrace.analysis.whatif.answer import answer, usual
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.errors import DdptraceError
from ddptrace.findings import Finding
from ddptrace.schema import Evidence
from tests.conftest import need
from tests.made import empty_result, make_result
from tests.unit.made_whatif import Made, in_buckets, made_ranks

LONG_NS = 2**62 + 1
"""No float holds it."""
EVIL = "<script>x()</script>\u202e"


@dataclass(frozen=True, slots=True)
class Measured:
    at_ns: int
    wait_ns: int | None
    ratio: float | None
    said: bool | None
    evidence: Evidence | None
    parameters: tuple[str, ...]


MADE = Table(
    Measured,
    [
        Measured(LONG_NS, LONG_NS, 0.5, True, Evidence.BACKEND, ("a", "b")),
        Measured(-LONG_NS, None, None, None, None, ()),
    ],
)


def compared() -> Diff:
    return compare(("a", "b"), made_side("before", 6), made_side("after", 6, first_at=1, wire={0: 3}))


def tables_of(*found: Result | Diff) -> list[Table[Any]]:
    values = [getattr(one, name) for one in found for name in one.__dataclass_fields__]
    return [value for value in values if isinstance(value, Table)]


def all_tables() -> list[Table[Any]]:
    return tables_of(make_result(2, 3, 2), make_device_result(), with_all(met_result()), empty_result(), compared())


def test_pandas_keeps_whole_numbers_and_knows_what_is_missing() -> None:
    need(find_spec("pandas"), "pandas (pip install pandas)")
    frame = MADE.to_pandas()
    types = ["int64", "Int64", "Float64", "boolean", "object", "object"]
    assert [str(dtype) for dtype in frame.dtypes] == types
    assert frame.at_ns.tolist() == [LONG_NS, -LONG_NS]
    assert frame.wait_ns[0] == LONG_NS
    assert frame.isna().sum().tolist() == [0, 1, 1, 1, 1, 0]
    assert frame.evidence[0] == "backend" and type(frame.evidence[0]) is str
    assert frame.parameters.tolist() == [("a", "b"), ()]


def test_pandas_takes_every_table_and_an_empty_one_has_the_same_types() -> None:
    need(find_spec("pandas"), "pandas (pip install pandas)")
    for table in all_tables():
        frame, empty = table.to_pandas(), table[:0].to_pandas()
        assert (len(frame), tuple(frame.columns)) == (len(table), table.columns)
        assert frame.dtypes.equals(empty.dtypes)


def test_polars_keeps_whole_numbers_and_knows_what_is_missing() -> None:
    need(find_spec("polars"), "polars (pip install polars)")
    frame = MADE.to_polars()
    types = ["Int64", "Int64", "Float64", "Boolean", "String", "List(String)"]
    assert [str(dtype) for dtype in frame.dtypes] == types
    assert frame.rows() == [
        (LONG_NS, LONG_NS, 0.5, True, "backend", ["a", "b"]),
        (-LONG_NS, None, None, None, None, []),
    ]


def test_polars_takes_every_table_and_an_empty_one_has_the_same_types() -> None:
    need(find_spec("polars"), "polars (pip install polars)")
    for table in all_tables():
        frame = table.to_polars()
        assert (frame.height, tuple(frame.columns)) == (len(table), table.columns)
        assert frame.schema == table[:0].to_polars().schema


def test_arrow_keeps_whole_numbers_and_knows_what_is_missing() -> None:
    frame = MADE.to_arrow()
    assert frame.schema.types == [
        pyarrow.int64(), pyarrow.int64(), pyarrow.float64(), pyarrow.bool_(), pyarrow.string(),
        pyarrow.list_(pyarrow.string()),
    ]  # fmt: skip
    assert frame.to_pylist() == [
        dict(zip(MADE.columns, (LONG_NS, LONG_NS, 0.5, True, "backend", ["a", "b"]), strict=True)),
        dict(zip(MADE.columns, (-LONG_NS, None, None, None, None, []), strict=True)),
    ]


def test_arrow_takes_every_table_and_an_empty_one_has_the_same_types() -> None:
    for table in all_tables():
        frame = table.to_arrow()
        assert (frame.num_rows, tuple(frame.column_names)) == (len(table), table.columns)
        assert frame.schema == table[:0].to_arrow().schema


def test_any_library_that_reads_arrow_takes_a_table_as_it_is() -> None:
    assert pyarrow.table(MADE) == MADE.to_arrow()
    need(find_spec("polars"), "polars (pip install polars)")
    import polars

    assert polars.DataFrame(MADE).equals(MADE.to_polars())


def test_duckdb_queries_a_table_by_the_name_of_its_variable() -> None:
    need(find_spec("duckdb"), "duckdb (pip install duckdb)")
    import duckdb

    made = MADE
    assert len(made) == 2
    assert duckdb.sql("select evidence, sum(at_ns) from made group by all order by 1 nulls first").fetchall() == [
        (None, -LONG_NS),
        ("backend", LONG_NS),
    ]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_number_that_no_column_holds_is_told_with_its_column(library: str) -> None:
    need(find_spec(library), f"{library} (pip install {library})")
    table = Table(Measured, [replace(MADE[0], wait_ns=2**63)])
    with pytest.raises(DdptraceError, match="9223372036854775808 in column 'wait_ns' is no 64-bit number"):
        getattr(table, f"to_{library}")()
    assert getattr(Table(Measured, [replace(MADE[0], wait_ns=-(2**63))]), f"to_{library}")()["wait_ns"][0] == -(2**63)


def test_a_name_that_no_encoding_holds_is_spelled_out_in_a_frame() -> None:
    need(find_spec("polars"), "polars (pip install polars)")
    table = Table(Finding, [Finding("restarted", "info", "runs/\udcff", "é")])
    assert table.to_polars().row(0) == ("restarted", "info", r"runs/\udcff", "é")


def test_a_row_within_a_row_is_a_dict_and_a_struct() -> None:
    need(find_spec("pandas") and find_spec("polars"), "pandas and polars (pip install pandas polars)")
    ranks = make_device_result().ranks
    (inner, *_) = [row["all"] for row in ranks.to_dicts()]
    assert inner["span_ns"] == ranks[0].all.span_ns
    assert ranks.to_pandas()["all"][0] == ranks.to_polars()["all"][0] == inner


@pytest.mark.parametrize(
    ("library", "form", "install"),
    [("pandas", "pandas", "pandas"), ("polars", "polars", "polars"), ("pyarrow", "arrow", "'ddptrace[arrow]'")],
)
def test_a_library_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, form: str, install: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DdptraceError) as told:
        getattr(MADE, f"to_{form}")()
    assert str(told.value).endswith(f"needs {library}, which is not installed: pip install {install}")


def test_a_notebook_shows_the_first_rows_and_how_many_there_are() -> None:
    steps = make_result(2, 40, 1).steps
    html = steps._repr_html_()
    assert html.count("<tr>") == 1 + 20
    assert "80 StepRow. The first 20 are shown" in html
    assert f"<td>{steps[0].window_ns:,}</td>" in html
    assert "are shown" not in steps[:20]._repr_html_()


def test_what_was_not_measured_is_no_number_in_a_notebook() -> None:
    assert MADE._repr_html_().count("<td>–</td>") == 4


def test_no_name_from_a_run_becomes_markup_in_a_notebook() -> None:
    result = make_result(1, 2, 1)
    evil = replace(
        result,
        run_id=EVIL,
        buckets=Table(BucketRow, [replace(row, parameters=(EVIL * 1000,)) for row in result.buckets]),
        findings=Table(Finding, [Finding(EVIL, "error", EVIL, EVIL * 100_000)]),
    )
    for html in (evil._repr_html_(), evil.buckets._repr_html_(), replace(compared(), before=EVIL)._repr_html_()):
        assert "<script" not in html and "\u202e" not in html
        assert "&lt;script" in html
        assert len(html) < 10_000


def test_a_result_tells_its_typical_step_its_findings_and_its_tables() -> None:
    result = make_result(2, 8, 6)
    assert repr(result) == "Result of run 5f1e5f1e (rows: ranks 2, steps 16, buckets 96, findings 3)"
    html = result._repr_html_()
    assert ">exposed_comm</td>" in html
    assert "rank 1 did not end cleanly" in html
    assert "<code>phases</code> 80" in html
    assert "<code>rpcs</code>" not in html


def test_nothing_that_a_notebook_shows_by_its_repr_fills_the_screen() -> None:
    result = make_result(2, 8, 6)
    predictor = Predictor(model_of([observe(one) for one in made_ranks(Made(), in_buckets(Made(), 2))]))
    advice = advise(predictor)
    shown = [result, result.summary, result.steps, result.activity, answer(predictor, usual(predictor)), advice]
    assert [repr(one) for one in shown if len(repr(one)) > 100] == []
    assert repr(result.summary) == "Summary: typical step 117 ms, 75 % of communication hidden"
    assert repr(Setting(caps=(1.0,), fp16=True)) == "Setting(caps=(1.0,), fp16=True)"


def test_a_result_without_steps_shows_itself_too() -> None:
    assert "no step was found" in empty_result()._repr_html_()


def test_of_many_findings_the_gravest_come_first_and_the_rest_is_counted() -> None:
    findings = [*[Finding("c", "info", "run", "said")] * 1012, Finding("e", "error", "run", "grave")]
    html = replace(make_result(1, 2, 1), findings=Table(Finding, findings))._repr_html_()
    assert html.count(">said</td>") == 9
    assert html.index("grave") < html.index("said")
    assert "1,003 more" in html


def test_a_diff_tells_what_surely_changed() -> None:
    found = compared()
    assert repr(found) == "Diff of a to b: 10 of 31 changes are sure"
    assert ">exposed_comm</td>" in found._repr_html_()


def test_a_slice_of_a_table_is_a_table() -> None:
    assert isinstance(make_result(1, 3, 1).steps[1:], Table)
    assert Table(StepRow).to_dicts() == []
