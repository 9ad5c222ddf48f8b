"""The form of every answer: an immutable sequence of rows of one dataclass, with its ways out.

Data frames keep what the rows hold: whole nanoseconds, and missing values for what was not measured. Notebooks show
plain HTML with the same numbers; names that a trace contains are escaped there: they are text, never markup.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from html import escape
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from ddptrace.analysis.tables.frames import arrow_table, pandas_frame, plain, polars_frame
from ddptrace.errors import printable
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
        return pandas_frame(self.row_type, self)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars DataFrame with these columns.

        Nanoseconds are Int64, None is null, a tuple is a list, a row within a row is a struct.

        Raises:
            DdptraceError: polars is missing; ddptrace does not install it.
        """
        return polars_frame(self.row_type, self)

    def to_arrow(self) -> pa.Table:
        """Return a pyarrow Table with these columns, which pyarrow writes to Parquet and DuckDB queries.

        Nanoseconds are int64, None is null, a tuple is a list, a row within a row is a struct.

        Raises:
            DdptraceError: pyarrow is missing: it comes with the extra `arrow`.
        """
        return arrow_table(self.row_type, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the table to any library that reads Arrow, such as `polars.DataFrame(table)`. Errors are those of
        `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)
