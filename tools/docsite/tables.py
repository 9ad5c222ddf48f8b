"""The page of tables: what `ddptrace.analyze` and the other commands answer with, column by column."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from ddptrace import Diff, Result
from ddptrace.analysis.diagnosis.tables import Diagnosis
from ddptrace.analysis.summary import Summary
from ddptrace.analysis.tables.declare import declared_in
from ddptrace.analysis.timeline.advice import RunAdvice
from ddptrace.analysis.traffic.digest import TrafficReport
from ddptrace.analysis.whatif.advise import Advice
from ddptrace.analysis.whatif.tables import WhatIf
from tools.docsite import json_schema
from tools.docsite.columns import columns_of, parts_of, rows_in, type_name


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of ddptrace, and where it comes from."""

    key: str
    title: str
    root: type[Any]


ANSWERS: Final = (
    Answer("run", "A run: `ddptrace analyze`", Result),
    Answer("summary", "`summary` of a run in JSON", Summary),
    Answer("diff", "A comparison: `ddptrace diff`", Diff),
    Answer("whatif", "Forecasts: `ddptrace whatif`", WhatIf),
    Answer("advise", "Advice: `ddptrace advise`", Advice),
    Answer("advise-run", "Advice where no buckets can be planned: `ddptrace advise`", RunAdvice),
    Answer("traffic", "Traffic: `ddptrace traffic`", TrafficReport),
    Answer("diagnose", "Diagnosis: `ddptrace diagnose`", Diagnosis),
)


def tables_page() -> str:
    """Write all answers as Markdown: a heading for each, and below it one for each of its row types."""
    return "\n".join(line for answer in ANSWERS for line in _answer(answer))


def row_types(answer: Answer) -> list[type[Any]]:
    """The row types of an answer, in order; those that an earlier answer has, too, are shown there."""
    return [row_type for row_type, (shown, _) in places().items() if shown is answer]


@functools.cache
def places() -> dict[type[Any], tuple[Answer, str]]:
    """Of every row type the answer that shows it, and the heading's name on the page."""
    found: dict[type[Any], tuple[Answer, str]] = {}
    for answer in ANSWERS:
        found.setdefault(answer.root, (answer, answer.key))
        for row_type in rows_in(answer.root):
            found.setdefault(row_type, (answer, f"{answer.key}-{row_type.__name__.lower()}"))
    return found


def _answer(answer: Answer) -> Iterator[str]:
    yield f"\n## {answer.title} {{ #{answer.key} }}\n"
    if answer.root is Result:
        yield f"`ddptrace analyze --json` has a [JSON schema]({PurePosixPath(json_schema.FILE).name}).\n"
    for row_type in row_types(answer):
        if row_type is not answer.root:
            yield f"\n### {title(row_type, answer)} {{ #{anchor(row_type)} }}\n"
        yield f"{_about(row_type)}\n"
        yield from (f"Key of `{name}`: {key}.\n" for name, key in _keys(row_type, answer))
        yield "| column | type | unit | meaning |\n|---|---|---|---|"
        for column in columns_of(row_type):
            yield f"| `{column.name}` | {_type(column.hint)} | {column.unit} | {_cell(column.meaning)} |"


def title(row_type: type[Any], answer: Answer) -> str:
    """As in "steps: StepRow", where rows of this type are a table of the answer."""
    tables = [column.name for column in columns_of(answer.root) if row_type in parts_of(column.hint)]
    return ", ".join(f"`{name}`" for name in tables) + f"{': ' if tables else ''}{row_type.__name__}"


def _keys(row_type: type[Any], answer: Answer) -> Iterator[tuple[str, str]]:
    """The columns that identify a row, for each declared table of such rows."""
    for name, table in declared_in(answer.root).items():
        if table.row_type is row_type and table.key:
            yield name, ", ".join(f"`{column}`" for column in table.key)


def _about(row_type: type[Any]) -> str:
    """The class's docstring, with a drawing in it left as it is."""
    paragraphs = (inspect.getdoc(row_type) or "").split("\n\n")
    return "\n\n".join(f"```text\n{one}\n```" if "┤" in one else one for one in paragraphs)


def _type(hint: Any) -> str:
    """The type's name, linked to its columns where it is a row type."""
    name = type_name(hint)
    for part in parts_of(hint):
        if part in places():
            name = name.replace(part.__name__, f"[{part.__name__}](#{anchor(part)})")
    return name


def anchor(row_type: type[Any]) -> str:
    return places()[row_type][1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
