"""Rows of which a run has millions: frozen dataclasses that C code makes and copies, in a fiftieth of the time."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeVar

import msgspec

Row = TypeVar("Row")
GENERATED: Final = frozenset(
    {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
    | {"__getstate__", "__setstate__", "__slots__", "__match_args__"}
)
"""What a dataclass has Python code for."""


def row(kind: type[Row]) -> type[Row]:
    """Make a row type of a dataclass, to be written above `@dataclass(frozen=True, slots=True)`.

    It has the same fields, methods and equality, and `dataclasses.fields` and the like take it for a dataclass. A field
    has a plain default or none.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    kept = {name: value for name, value in vars(kind).items() if name not in GENERATED and name not in fields}
    defaults = {name: field.default for name, field in fields.items() if field.default is not dataclasses.MISSING}
    meta: Any = type(msgspec.Struct)
    made: type[Row] = meta(kind.__name__, (msgspec.Struct,), kept | defaults, frozen=True)
    return made


def replaced(one: Row, **changes: Any) -> Row:
    """Copy a row of such a type with other values in these fields, as `dataclasses.replace` does."""
    changed: Row = msgspec.structs.replace(one, **changes)  # type: ignore[type-var]
    return changed
