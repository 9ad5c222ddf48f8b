"""What is known of a table's columns: name, type, unit and meaning.

The declaration is the one source: the docstring of the row's class says what a row is, and the comment beside a field
what the field means. A comment may go on in lines of its own below the field.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.tables.device import Activity
from ddptrace.analysis.tables.table import Table
from ddptrace.load.tables import Recording

UNITS: Final = {
    "_at_ns": "ns since `zero_unix_ns`",
    "_ns": "ns",
    "flops_per_s": "FLOP/s",
    "_per_s": "bytes/s",
    "_ratio": "ratio, 0 to 1",
    "_nbytes": "bytes",
}
"""By the end of a column's name; the first that fits."""
SIGNED: Final = {"change_ratio", "step_ratio", "drift_ratio", "gain_ratio", "gain_low_ratio", "gain_high_ratio"}
NOT_SHOWN: Final = (Activity, Recording)
"""Arrays for pictures, and what only a monitor asks: they are in no table."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    hint: Any
    unit: str
    meaning: str  # "" where the declaration does not say


def columns_of(row_type: type[Any]) -> list[Column]:
    """Read the columns of a row type, in order."""
    meanings = meanings_of(row_type)
    return [Column(name, hint, unit_of(name), meanings.get(name, "")) for name, hint in _hints_of(row_type).items()]


def _hints_of(row_type: type[Any]) -> dict[str, Any]:
    """Return the type of each column, in order."""
    hints = typing.get_type_hints(row_type)
    names = [field.name for field in dataclasses.fields(row_type)]
    return {name: hints[name] for name in names if not any(part in NOT_SHOWN for part in parts_of(hints[name]))}


def rows_in(row_type: type[Any]) -> Iterator[type[Any]]:
    """Find the row types that stand in a row type's columns, and those within them, in order."""
    for hint in _hints_of(row_type).values():
        for part in parts_of(hint):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield part
                yield from rows_in(part)


def parts_of(hint: Any) -> Iterator[Any]:
    """A type and all the types that it is made of."""
    yield hint
    for part in typing.get_args(hint):
        yield from parts_of(part)


def unit_of(name: str) -> str:
    unit = next((unit for ending, unit in UNITS.items() if f"_{name}".endswith(ending)), "")
    return "ratio" if name in SIGNED else unit


def type_name(hint: Any) -> str:
    """Name a type as a reader of JSON or of a data frame would."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in arguments)
    if origin is typing.Literal:
        return "str"
    if origin is Table or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {type_name(arguments[0])}"
    if origin is tuple:
        return f"({', '.join(map(type_name, arguments))})"
    if hint is type(None):
        return "None"
    return "str" if issubclass(hint, str) else str(hint.__name__)


def meanings_of(row_type: type[Any]) -> dict[str, str]:
    """By field, the comment at the end of its line, with the lines of comment that follow it."""
    source = textwrap.dedent(inspect.getsource(row_type))
    declared = ast.parse(source).body[0]
    assert isinstance(declared, ast.ClassDef)
    fields = {
        node.end_lineno: node.target.id
        for node in declared.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    found: dict[str, str] = {}
    name, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            name = fields.get(line) or (name if line == last + 1 else "")
            found[name] = f"{found.get(name, '')} {token.string.lstrip('# ')}".strip()
            last = line
    return found
