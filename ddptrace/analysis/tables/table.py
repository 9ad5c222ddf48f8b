"""Defines the form of every answer: an immutable sequence of rows, as dicts, as a data frame or as HTML.

Data frames keep what the rows hold: whole nanoseconds, and missing values for what was not measured. Notebooks show
plain HTML with the same numbers; names that a trace contains are escaped there: they are text, never markup.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from html import escape
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from ddptrace.errors import DdptraceError, printable
from ddptrace.findings import gravest_first

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl  # type: ignore[import-not-found, unused-ignore]
    import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]

    from ddptrace.findings import Finding

ROWS_MAX: Final = 20
FINDINGS_MAX: Final = 10
CELL_MAX, SENTENCE_MAX = 80, 500
"""Characters shown of a cell, and of a finding."""
NONE: Final = "–"
Row = TypeVar("Row")


# HTML -----------------------------------------------------------------------------------------------------------------


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def findings_html(findings: Sequence[Finding]) -> str:
    """The gravest findings, and how many more there are."""
    rows = [(finding.severity, finding.where, finding.message) for finding in gravest_first(findings)[:FINDINGS_MAX]]
    more = len(findings) - len(rows)
    told = f"<p>… and {more:,} more in <code>findings</code>.</p>" if more else ""
    return grid(("severity", "where", "finding"), rows, SENTENCE_MAX) + told if rows else ""


def table_names(tables: Mapping[str, Sized]) -> str:
    """Which tables have rows, and how many."""
    filled = (f"<code>{name}</code> {len(table):,}" for name, table in tables.items() if len(table))
    return f"<p>Tables and their rows: {', '.join(filled)}.</p>"


def grid(heads: Iterable[str], rows: Iterable[Sequence[object]], most: int = CELL_MAX) -> str:
    """An HTML table. `most`: characters shown of a cell."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(_cell(value, most) for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object, most: int) -> str:
    words = _words(value)
    text = escape(printable(words if len(words) <= most else words[: most - 1] + "…"))
    lines = "nowrap" if most == CELL_MAX else "normal"
    style = f' style="text-align:left;white-space:{lines}"' if isinstance(value, str | tuple) else ""
    return f"<td{style}>{text}</td>"


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return NONE if value is None else f"{value:,}" if is_number else str(value)


# Tables ---------------------------------------------------------------------------------------------------------------


class Table(Sequence[Row], Generic[Row]):
    """An immutable sequence of rows of one dataclass. A notebook shows its first rows."""

    def __init__(self, row_type: type[Row], rows: Sequence[Row] = ()) -> None:
        self.row_type = row_type
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Table[Row]:
        return Table(self.row_type, self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return f"Table of {len(self)} {self.row_type.__name__}"

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook, and how many there are."""
        rows = ([getattr(row, name) for name in self.columns] for row in self[:ROWS_MAX])
        cut = f" The first {ROWS_MAX} are shown; to_pandas(), to_polars() and to_dicts() have all."
        count = f"{len(self):,} {self.row_type.__name__}.{cut if len(self) > ROWS_MAX else ''}"
        return grid(self.columns, rows) + paragraph(count)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the documented order."""
        return tuple(f.name for f in dataclasses.fields(self.row_type))  # type: ignore[arg-type]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row, with keys in the documented order; a row within a row is a dict, too."""
        names = self.columns
        return [{name: plain(getattr(row, name)) for name in names} for row in self]

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas DataFrame with these columns, also without rows.

        Whole numbers are int64, or Int64 where one may be missing: nanoseconds stay exact, and None is `pandas.NA`. A
        tuple is one cell.

        Raises:
            DdptraceError: pandas is missing; ddptrace does not install it.
        """
        return _pandas_frame(self.row_type, self)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars DataFrame with these columns.

        Nanoseconds are Int64, None is null, a tuple is a list, a row within a row is a struct.

        Raises:
            DdptraceError: polars is missing; ddptrace does not install it.
        """
        return _polars_frame(self.row_type, self)

    def to_arrow(self) -> pa.Table:
        """Return a pyarrow Table with these columns, which pyarrow writes to Parquet and DuckDB queries.

        Nanoseconds are int64, None is null, a tuple is a list, a row within a row is a struct.

        Raises:
            DdptraceError: pyarrow is missing: it comes with the extra `arrow`.
        """
        return _arrow_table(self.row_type, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the table to any library that reads Arrow, such as `polars.DataFrame(table)`. Errors are those of
        `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


# Data frames ----------------------------------------------------------------------------------------------------------


PANDAS_TYPES: Final = {int: ("int64", "Int64"), float: ("float64", "Float64"), bool: ("bool", "boolean")}
"""Without and with None. Everything else is an object."""
POLARS_TYPES: Final = {int: "Int64", float: "Float64", bool: "Boolean"}
ARROW_TYPES: Final = {int: "int64", float: "float64", bool: "bool_"}
LARGEST: Final = 2**63
"""From here on, and below what it is the negative of, int64 holds no number."""
INSTALLED_BY: Final = {"pyarrow": "'ddptrace[arrow]'"}


def plain(value: Any) -> Any:
    """A row within a row as a dict."""
    is_row = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_row else value


def _pandas_frame(row_type: type, rows: Sequence[Any]) -> pd.DataFrame:
    """Raises DdptraceError without pandas."""
    pandas = _library("pandas")
    columns = {}
    for name, kind, optional in _kinds(row_type):
        dtype = PANDAS_TYPES[kind][optional] if kind in PANDAS_TYPES else "object"
        columns[name] = pandas.Series(_values(rows, name), dtype=dtype)
    frame: pd.DataFrame = pandas.DataFrame(columns, columns=list(columns))
    return frame


def _polars_frame(row_type: type, rows: Sequence[Any]) -> pl.DataFrame:
    """Raises DdptraceError without polars."""
    polars = _library("polars")
    schema = {name: _polars_type(polars, kind) for name, kind, _ in _kinds(row_type)}
    frame: pl.DataFrame = polars.DataFrame({name: _values(rows, name) for name in schema}, schema=schema)
    return frame


def _arrow_table(row_type: type, rows: Sequence[Any]) -> pa.Table:
    """Raises DdptraceError without pyarrow."""
    pyarrow = _library("pyarrow")
    schema = pyarrow.schema([(name, _arrow_type(pyarrow, kind)) for name, kind, _ in _kinds(row_type)])
    return pyarrow.Table.from_pydict({name: _values(rows, name) for name in schema.names}, schema)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        how = f"pip install {INSTALLED_BY.get(name, name)}"
        raise DdptraceError(f"this form of a table needs {name}, which is not installed: {how}") from None


def _kinds(row_type: type) -> Iterator[tuple[str, Any, bool]]:
    """Of each column its name, its type, and whether it may be None."""
    hints = get_type_hints(row_type)
    for field in dataclasses.fields(row_type):
        hint = hints[field.name]
        several = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (kind,) = (one for one in several if one is not types.NoneType)
        yield field.name, kind, len(several) > 1


def _values(rows: Sequence[Any], name: str) -> list[Any]:
    """Raises DdptraceError where a file says a number that int64 does not hold."""
    values = [_bare(getattr(row, name)) for row in rows]
    for value in values:
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise DdptraceError(f"{value} in column {name!r} is no 64-bit number: to_dicts() has it as it was read")
    return values


def _bare(value: Any) -> Any:
    """Words for enums, dicts for rows within rows, and text that every encoding can hold."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else plain(value)


def _polars_type(polars: Any, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return polars.Struct({name: _polars_type(polars, inner) for name, inner, _ in _kinds(kind)})
    if get_origin(kind) is tuple:
        return polars.List(_polars_type(polars, get_args(kind)[0]))
    return getattr(polars, POLARS_TYPES.get(kind, "String"))


def _arrow_type(pyarrow: Any, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return pyarrow.struct([(name, _arrow_type(pyarrow, inner)) for name, inner, _ in _kinds(kind)])
    if get_origin(kind) is tuple:
        return pyarrow.list_(_arrow_type(pyarrow, get_args(kind)[0]))
    return getattr(pyarrow, ARROW_TYPES.get(kind, "string"))()
