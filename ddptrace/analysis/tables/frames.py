"""Data frames of a table: for pandas, for polars, and in Arrow's form, which most other libraries read."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from ddptrace.errors import DdptraceError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl  # type: ignore[import-not-found, unused-ignore]
    import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]
PANDAS: Final = {int: ("int64", "Int64"), float: ("float64", "Float64"), bool: ("bool", "boolean")}
"""Without and with None. Everything else is an object."""
POLARS: Final = {int: "Int64", float: "Float64", bool: "Boolean"}
ARROW: Final = {int: "int64", float: "float64", bool: "bool_"}
LARGEST: Final = 2**63
"""From here on, and below what it is the negative of, int64 holds no number."""
INSTALLED_BY: Final = {"pyarrow": "'ddptrace[arrow]'"}


def plain(value: Any) -> Any:
    """A row within a row as a dict."""
    is_row = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_row else value


def pandas_frame(row_type: type, rows: Sequence[Any]) -> pd.DataFrame:
    """Raises DdptraceError without pandas."""
    pandas = _library("pandas")
    columns = {}
    for name, kind, optional in _kinds(row_type):
        dtype = PANDAS[kind][optional] if kind in PANDAS else "object"
        columns[name] = pandas.Series(_values(rows, name), dtype=dtype)
    frame: pd.DataFrame = pandas.DataFrame(columns, columns=list(columns))
    return frame


def polars_frame(row_type: type, rows: Sequence[Any]) -> pl.DataFrame:
    """Raises DdptraceError without polars."""
    polars = _library("polars")
    schema = {name: _polars_type(polars, kind) for name, kind, _ in _kinds(row_type)}
    frame: pl.DataFrame = polars.DataFrame({name: _values(rows, name) for name in schema}, schema=schema)
    return frame


def arrow_table(row_type: type, rows: Sequence[Any]) -> pa.Table:
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
    return getattr(polars, POLARS.get(kind, "String"))


def _arrow_type(pyarrow: Any, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return pyarrow.struct([(name, _arrow_type(pyarrow, inner)) for name, inner, _ in _kinds(kind)])
    if get_origin(kind) is tuple:
        return pyarrow.list_(_arrow_type(pyarrow, get_args(kind)[0]))
    return getattr(pyarrow, ARROW.get(kind, "string"))()
