"""The report's building blocks, as HTML: what is not marked as HTML is text, and escaped here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from ddptrace.render.figure import Figure, clipped
from ddptrace.units import NOT_MEASURED

TEXT_MAX: Final = 2_000
NAME_MAX: Final = 160
HEADING: Final = re.compile(r'<section id="([^"]+)"><h2>(.*?)</h2>')
Heads = Sequence[tuple[str, str]]
"""Title and class of each column."""


def text(words: str, most: int = TEXT_MAX) -> str:
    """Words from outside, to be read: nothing in them is obeyed, and of what no one would read both ends are left."""
    return escape(clipped(words, most))


def label(words: str) -> str:
    """The same of a name."""
    return text(words, NAME_MAX)


def slug(title: str) -> str:
    """What a section is linked by."""
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")


def section(title: str, sub: str, *content: str) -> str:
    """A section with what it has to show; nothing where it has nothing."""
    body = "".join(content)
    if not body:
        return ""
    return f'<section id="{slug(title)}"><h2>{escape(title)}</h2><p class="sub">{escape(sub)}</p>{body}</section>'


def contents(chapters: Iterable[tuple[str, str]]) -> str:
    """Links to the sections that are there, under the name of their chapter."""
    parts = [f"<b>{escape(chapter)}</b>{links}" for chapter, html in chapters if (links := linked(html))]
    return f'<nav class="contents" aria-label="Contents">{"".join(parts)}</nav>'


def linked(html: str) -> str:
    return "".join(f'<a href="#{key}">{title}</a>' for key, title in HEADING.findall(html))


def figure_html(figure: Figure | None) -> str:
    if figure is None:
        return ""
    caption = f"caption-{figure.key}"
    return (
        f'<figure><div id="figure-{figure.key}" role="group" aria-labelledby="{caption}"'
        f' style="height:{figure.height_px}px"></div>'
        f'<figcaption id="{caption}">{escape(figure.caption)}</figcaption></figure>'
    )


def table(heads: Heads, rows: Iterable[Sequence[str]], notes: Iterable[str] = itertools.repeat("")) -> str:
    """Cells are HTML, and so is the note below each row, where it has one: what is too long for a column. A column in
    which nothing was measured is left out."""
    return _table(*_measured(heads, list(rows)), notes)


def _measured(heads: Heads, rows: Sequence[Sequence[str]]) -> tuple[Heads, Sequence[Sequence[str]]]:
    """Leave out columns that hold nothing but dashes."""
    kept = [at for at in range(len(heads)) if not rows or any(row[at] != NOT_MEASURED for row in rows)]
    return [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _table(heads: Heads, rows: Iterable[Sequence[str]], notes: Iterable[str]) -> str:
    top = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True))
        + "</tr>"
        + (f'<tr class="note"><td colspan="{len(heads)}">{note}</td></tr>' if note else "")
        for row, note in zip(rows, notes, strict=False)
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


EMPTY: Final = ("", NOT_MEASURED)


def without_empty(heads: Heads, rows: Sequence[Sequence[str]]) -> tuple[Heads, list[list[str]]]:
    """Leave out the columns in which no row has anything."""
    kept = [at for at in range(len(heads)) if any(row[at] not in EMPTY for row in rows)]
    return tuple(heads[at] for at in kept), [[row[at] for at in kept] for row in rows]


def folded(heads: Heads, rows: Sequence[Sequence[str]], most: int, rest: str, notes: Sequence[str] = ()) -> str:
    """A table of the first rows, and what is left of it to be unfolded: as in "18 more buckets"."""
    more, notes = len(rows) - most, notes or [""] * len(rows)
    heads, rows = _measured(heads, rows)  # of both parts together
    hidden = _table(heads, rows[most:], notes[most:])
    below = f"<details><summary>{more:,} more {escape(rest)}</summary>{hidden}</details>"
    return _table(heads, rows[:most], notes[:most]) + (below if more > 0 else "")
