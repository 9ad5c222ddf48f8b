"""Bars that would flatten all others, as that of the first step: the axis ends below, and their lengths are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Final

from ddptrace.render.words import counted, duration

TALL_MIN: Final = 3.0
"""Times the median, from which on a bar flattens the others."""
FEW_RATIO: Final = 0.1
"""More of them than this are what the program is like, and not cut off."""
ROOM_RATIO: Final = 0.4
"""Of the tallest other bar, left above it for the words."""
TOLD_MAX: Final = 3
"""In one panel, the tallest."""
LINE_PX: Final = 15


@dataclass(frozen=True, slots=True)
class Bar:
    """`begin` to `end` on the step axis; `name` is that of its steps."""

    begin: float
    end: float
    ns: float
    name: str


def top_of(panels: Sequence[Sequence[Bar]]) -> float | None:
    """Where the axis of all panels is to end, in ns; None: with the tallest bar, as ever. Each panel may have one that
    is cut off."""
    lengths = [bar.ns for panel in panels for bar in panel]
    tall_ns = TALL_MIN * median_low(lengths)
    others = [ns for ns in lengths if ns <= tall_ns]
    tall = len(lengths) - len(others)
    if not tall_ns or not tall or tall > max(len(panels), FEW_RATIO * len(lengths)):
        return None
    return (1 + ROOM_RATIO) * max(others)


def labels(panels: Sequence[Sequence[Bar]], top_ns: float | None) -> list[dict[str, Any]]:
    """What plotly writes beside the bars that are cut off."""
    if top_ns is None:
        return []
    return [label for number, panel in enumerate(panels, start=1) for label in _of_panel(panel, top_ns, number)]


def _of_panel(panel: Sequence[Bar], top_ns: float, number: int) -> Iterator[dict[str, Any]]:
    middle = (panel[0].begin + panel[-1].end) / 2
    cut = sorted((bar for bar in panel if bar.ns > top_ns), key=lambda bar: -bar.ns)[:TOLD_MAX]
    for line, bar in enumerate(cut):
        yield _label(bar, bar.begin < middle, number, line)


def _label(bar: Bar, at_right: bool, number: int, line: int) -> dict[str, Any]:
    words = f"{bar.name}: {duration(bar.ns)}"
    return {
        "text": f"↑ {words}" if at_right else f"{words} ↑", "showarrow": False, "xref": "x",
        "yref": "y domain" if number == 1 else f"y{number} domain", "x": bar.end if at_right else bar.begin, "y": 1,
        "xanchor": "left" if at_right else "right", "yanchor": "top", "yshift": -LINE_PX * line,
    }  # fmt: skip


def cut_words(panels: Sequence[Sequence[Bar]], top_ns: float | None) -> str:
    """For the caption."""
    cut = 0 if top_ns is None else sum(bar.ns > top_ns for panel in panels for bar in panel)
    return f" {counted(cut, 'bar')} {'is' if cut == 1 else 'are'} cut off at the top." if cut else ""
