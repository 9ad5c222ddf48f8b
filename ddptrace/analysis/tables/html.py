"""How tables and results show themselves in a notebook: plain HTML, with the numbers as they are.

Whatever a trace named is text here, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ddptrace.analysis.tables.table import Table
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.analysis.diff.tables import Diff
    from ddptrace.analysis.tables.result import Result
    from ddptrace.load.tables import Finding

ROWS_MAX: Final = 20
FINDINGS_MAX: Final = 10
CELL_MAX, SENTENCE_MAX = 80, 500
"""Characters that are shown of a cell, and of a finding."""
NONE: Final = "–"
GRAVEST: Final = {"error": 0, "warning": 1}


def table_html(table: Table[Any]) -> str:
    """The first rows, and how many there are."""
    rows = ([getattr(row, name) for name in table.columns] for row in table[:ROWS_MAX])
    cut = f" The first {ROWS_MAX} are shown; to_pandas(), to_polars() and to_dicts() have all."
    count = f"{len(table):,} {table.row_type.__name__}.{cut if len(table) > ROWS_MAX else ''}"
    return _table(table.columns, rows) + f"<p>{escape(count)}</p>"


def result_html(result: Result) -> str:
    """The typical step, the findings, and which tables there are."""
    from ddptrace.analysis.summary import summarize

    summary = summarize(result)
    parts = [(part.name, part.ns, f"{part.ratio:.1%}") for part in summary.parts]
    tables = {name: table for name, table in result.json_items() if isinstance(table, Table)}
    return "".join((
        f"<p>{escape(repr(result))}</p>",
        f"<p>The typical step ({escape(summary.population)}):</p>" if parts else "",
        _table(("part", "ns", "of the step"), parts) if parts else "",
        _findings(result.findings),
        _tables(tables),
    ))  # fmt: skip


def diff_html(diff: Diff) -> str:
    """What surely changed, the findings, and which tables there are."""
    names = ("kind", "name", "rank", "index", "before_ns", "after_ns", "change_ns", "low_ns", "high_ns", "is_sure")
    shown = [row for row in diff.changes if row.is_sure or row.kind in ("step", "part")][:ROWS_MAX]
    return "".join((
        f"<p>{escape(repr(diff))}</p>",
        _table(names, ([getattr(row, name) for name in names] for row in shown)),
        _findings(diff.findings),
        _tables({"runs": diff.runs, "changes": diff.changes, "settings": diff.settings}),
    ))  # fmt: skip


def _findings(findings: Sequence[Finding]) -> str:
    gravest_first = sorted(findings, key=lambda one: GRAVEST.get(one.severity, len(GRAVEST)))
    rows = [(one.severity, one.where, one.message) for one in gravest_first[:FINDINGS_MAX]]
    more = len(findings) - len(rows)
    told = f"<p>… and {more:,} more in <code>findings</code>.</p>" if more else ""
    return _table(("severity", "where", "finding"), rows, SENTENCE_MAX) + told if rows else ""


def _tables(tables: dict[str, Table[Any]]) -> str:
    filled = (f"<code>{name}</code> {len(table):,}" for name, table in tables.items() if table)
    return f"<p>Tables and their rows: {', '.join(filled)}.</p>"


def _table(heads: Iterable[str], rows: Iterable[Sequence[object]], most: int = CELL_MAX) -> str:
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
