"""Makes a stand-alone figure from data for plotly.js: with a title, a caption and the report's colours."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ddptrace.errors import DdptraceError
from ddptrace.render.figures import Figure as Drawing

if TYPE_CHECKING:
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
CAPTION_COLUMNS, CAPTION_PX, LINE_PX, TITLE_PX = 130, 12, 22, 36


@dataclass(frozen=True, slots=True)
class Look:
    """The report's colours of the same names."""

    card: str
    ink: str
    soft: str
    line: str
    grid: str


LIGHT: Final = Look("#ffffff", "#1c2730", "#5d6a75", "#e3e0da", "#ebe8e2")
DARK: Final = Look("#1b2229", "#e4e9ed", "#93a1ad", "#2c353d", "#2a323a")


def drawn(title: str, drawing: Drawing | None, why_not: str, dark: bool) -> Figure:
    """Return the figure with its title. Raises DdptraceError with `why_not` if there is nothing to draw."""
    from plotly.graph_objects import Figure

    if drawing is None:
        raise DdptraceError(f"cannot draw {title!r}: {why_not}")
    look = DARK if dark else LIGHT
    lines = textwrap.wrap(drawing.caption, CAPTION_COLUMNS)
    above = TITLE_PX + LINE_PX * len(lines)
    figure = Figure(data=drawing.data, layout=drawing.layout)
    margin = {"l": 16, "r": 20, "b": 16, "t": above + int(drawing.layout["margin"]["t"])}
    return figure.update_layout(
        template=template(look), title=heading(title, lines, look), height=drawing.height_px + above, margin=margin
    )


def heading(title: str, lines: list[str], look: Look) -> dict[str, Any]:
    """Return title and caption for plotly, escaped, since its texts are markup."""
    style = f"font-size:{CAPTION_PX}px;color:{look.soft}"
    below = "".join(f'<br><span style="{style}">{escape(line, quote=False)}</span>' for line in lines)
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container", "pad": {"t": 24, "l": 16}}
    return {"text": f"<b>{escape(title)}</b>{below}", "font": {"size": 17}, **place}


def template(look: Look) -> dict[str, Any]:
    """Return the colours of everything except the marks."""
    axis = {"gridcolor": look.grid, "linecolor": look.line, "tickcolor": look.line}
    hover = {"bgcolor": look.card, "bordercolor": look.line, "font": {"color": look.ink}, "align": "left"}
    letters = {"family": FONT, "size": 13, "color": look.ink}
    page = {"paper_bgcolor": look.card, "plot_bgcolor": look.card}
    return {"layout": {**page, "font": letters, "hoverlabel": hover, "xaxis": axis, "yaxis": axis}}
