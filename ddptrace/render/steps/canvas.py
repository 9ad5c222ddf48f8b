"""What the time line is drawn on: rows from top to bottom, and bars on them, by kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ddptrace.render.figures import COLOURS, axis, layout, ms

ROW_GAP: Final = 0.12
KINDS: Final = {
    "data": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer", "other": "other",
    "gradients": "gradients arriving", "queue": "launched, queued", "compute": "compute",
    "hidden": "communication, hidden", "exposed_comm": "communication, exposed", "label": "",
}  # fmt: skip
"""What is drawn, in the order in which later covers earlier."""
UNLISTED: Final = ("data", "forward", "backward", "optimizer", "label")
"""What says its own name needs no place in the legend."""

Bar = tuple[int, int, float, float, str, str, str]
"""Begin and end in ns from the left edge, place, thickness, what to say when pointed at, what to write inside, and of a
bucket what links to it."""


@dataclass(slots=True)
class Canvas:
    """The bars of each kind, and the rows' names from top to bottom."""

    bars: dict[str, list[Bar]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    names: list[tuple[float, str]] = field(default_factory=list)
    depth: float = 0.0
    zero: int = 0  # the instant at the left edge, for what is added from now on

    def row(self, name: str, thickness: float, gap: float = ROW_GAP) -> float:
        """Begin a row below the others and give its middle."""
        place = self.depth + thickness / 2
        if name:
            self.names.append((place, name))
        self.depth += thickness + gap
        return place

    def rows(self, name: str, count: int, thickness: float, depth: float) -> tuple[list[float], float]:
        """Several at once, thinner where they are more than `depth` has room for: their middles, and how thick."""
        scale = min(1.0, depth / (count * (thickness + ROW_GAP))) if count else 1.0
        places = [self.row(name if at == 0 else "", scale * thickness, scale * ROW_GAP) for at in range(count)]
        return places, scale * thickness

    def add(
        self,
        kind: str,
        span: tuple[int, int],
        place: float,
        thickness: float,
        hover: str,
        inside: str = "",
        key: str = "",
    ) -> None:
        if span[1] > span[0]:
            self.bars[kind].append((span[0] - self.zero, span[1] - self.zero, place, thickness, hover, inside, key))


def traces(canvas: Canvas) -> list[dict[str, Any]]:
    return [trace(kind, bars) for kind, bars in canvas.bars.items() if bars]


def trace(kind: str, bars: list[Bar]) -> dict[str, Any]:
    begins, ends, places, widths, hover, inside, keys = zip(*bars, strict=True)
    return {
        "type": "bar",
        "orientation": "h",
        "name": KINDS[kind],
        "showlegend": kind not in UNLISTED,
        "marker": {"color": COLOURS.get(kind, "rgba(0,0,0,0)"), "line": {"width": 0}},
        "base": ms(begins),
        "x": ms(end - begin for begin, end in zip(begins, ends, strict=True)),
        "y": list(places),
        "width": list(widths),
        "hovertext": list(hover),
        "hoverinfo": "skip" if kind in ("hidden", "exposed_comm") else "text",
        "text": list(inside),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "#ffffff" if kind == "backward" else "#10222e", "size": 11},
        "constraintext": "inside",
        **({"customdata": list(keys)} if any(keys) else {}),
    }


def sheet(canvas: Canvas) -> dict[str, Any]:
    places, names = zip(*canvas.names, strict=True)
    rows = axis(range=[canvas.depth - 0.3, -0.2], tickvals=list(places), ticktext=list(names), showgrid=False)
    return layout(
        barmode="overlay",
        yaxis=rows,
        xaxis=axis("ms since the step began", rangemode="tozero"),
        hovermode="closest",
        uniformtext={"mode": "hide", "minsize": 9},
        dragmode="zoom",
    )
