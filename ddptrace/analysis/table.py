"""What every answer comes as: an immutable sequence of rows of one dataclass, and its ways out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl  # type: ignore[import-not-found, unused-ignore]

Row = TypeVar("Row")


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
        """For a notebook."""
        from ddptrace.analysis.shown import table_html

        return table_html(self)

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
        from ddptrace.analysis.frames import pandas_frame

        return pandas_frame(self)

    def to_polars(self) -> pl.DataFrame:
        """Return a polars DataFrame with these columns.

        Nanoseconds are Int64, None is null, a tuple is a list, a row within a row is a struct.

        Raises:
            DdptraceError: polars is missing; ddptrace does not install it.
        """
        from ddptrace.analysis.frames import polars_frame

        return polars_frame(self)


def plain(value: Any) -> Any:
    """A row within a row as a dict."""
    is_row = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_row else value
