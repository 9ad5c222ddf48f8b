"""How tables and results show themselves in a notebook: plain HTML, with the numbers as they are.

Names that a trace contains are escaped: they are text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from html import escape
from typing import TYPE_CHECKING, Final

from ddptrace.errors import printable
from ddptrace.findings import gravest_first

if TYPE_CHECKING:
    from ddptrace.findings import Finding

ROWS_MAX: Final = 20
FINDINGS_MAX: Final = 10
CELL_MAX, SENTENCE_MAX = 80, 500
"""Characters shown of a cell, and of a finding."""
NONE: Final = "–"


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
