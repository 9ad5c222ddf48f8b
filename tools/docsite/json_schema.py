"""The JSON schema of `ddptrace analyze --json`, made from the declarations of its tables and columns."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Collection
from typing import Any, Final

from ddptrace import Result
from ddptrace.analysis.summary import TABLES as NOT_IN_JSON
from ddptrace.analysis.summary import Summary
from ddptrace.analysis.tables.table import Table
from tools.docsite.columns import columns_of

FILE: Final = "reference/analysis.schema.json"
WORDS: Final[dict[Any, str]] = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}


def schema_text() -> str:
    """Write the schema as JSON."""
    return json.dumps(analysis_schema(), indent=1) + "\n"


def analysis_schema() -> dict[str, Any]:
    """Return the schema. A reader may meet keys that it does not name: a later ddptrace adds columns and tables."""
    found = _row(Result)
    found["properties"]["summary"] = _row(Summary, without=NOT_IN_JSON)
    found["required"].append("summary")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ddptrace analyze --json", **found}


def _row(row_type: type[Any], without: Collection[str] = ()) -> dict[str, Any]:
    """An object with a property for each column, but for those `without`."""
    properties = {}
    for column in (column for column in columns_of(row_type) if column.name not in without):
        described = "; ".join(filter(None, (column.meaning, column.unit)))
        properties[column.name] = _value(column.hint) | ({"description": described} if described else {})
    return {"type": "object", "properties": properties, "required": list(properties)}


def _value(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either([_value(part) for part in arguments])
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is Table or (origin is tuple and arguments[-1] is Ellipsis):
        return {"type": "array", "items": _value(arguments[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_value(part) for part in arguments], "items": False}
    if dataclasses.is_dataclass(hint):
        return _row(typing.cast("type[Any]", hint))
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": WORDS[hint]}


def _either(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema for any of these: a list of types where nothing more is said of them."""
    if all(part.keys() == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    return {"anyOf": parts}
