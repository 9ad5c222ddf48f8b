"""The report's building blocks, as HTML: what is not marked as HTML is text, and escaped here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from html import escape

from ddptrace.render.figures import Figure


def section(title: str, sub: str, *content: str) -> str:
    """A section with what it has to show; nothing where it has nothing."""
    body = "".join(content)
    return f"<section><h2>{escape(title)}</h2><p class='sub'>{escape(sub)}</p>{body}</section>" if body else ""


def figure_html(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return (
        f'<figure><div id="figure-{figure.key}" style="height:{figure.height_px}px"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def table(
    heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], notes: Iterable[str] = itertools.repeat("")
) -> str:
    """`heads` are title and class of each column; cells are HTML, and so is the note below each row, where it has one:
    what is too long for a column."""
    top = "".join(f'<th class="{kind}">{escape(title)}</th>' for title, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True))
        + "</tr>"
        + (f'<tr class="note"><td colspan="{len(heads)}">{note}</td></tr>' if note else "")
        for row, note in zip(rows, notes, strict=False)
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
