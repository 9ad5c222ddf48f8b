"""A benchmark's sheet as files: Markdown, JSON with every measurement, and one HTML page with its charts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ddptrace.render.figure import Figure, axis, layout, plain
from ddptrace.render.markup import figure_html, section, table, text
from ddptrace.render.report import HEAD, POLICY, TAIL, asset, plotly_js, script_json
from ddptrace.render.sheet import Chart, Grid, Line, Sheet, markdown, notes_once
from ddptrace.render.whole_file import whole_file

PALETTE: Final = (
    "#4a80b3", "#e4683a", "#3f8f8b", "#9a6fb8", "#d9b44a", "#7a9e59", "#868e99", "#b5485d", "#5bb5d6", "#a8794f",
)  # fmt: skip
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
ERROR_COLOUR: Final = "#868e99"
"""Of intervals over bars: to be seen on the bars, and on a light and a dark page."""
HEIGHT_PX, LEGEND_ROW_PX = 380, 20
LEGEND_ABOVE_MAX: Final = 8
"""With more lines the legend stands beside the chart, where it takes no height from it."""


def write_sheet(sheet: Sheet, data: Mapping[str, Any], folder: Path) -> None:
    """Write NAME.md, NAME.json (`data` beside the sheet) and NAME.html, each whole or not at all."""
    texts = {
        "md": markdown(sheet),
        "json": json.dumps(_finite({"sheet": asdict(sheet), **data}), indent=1, allow_nan=False),
        "html": page(sheet),
    }
    for ending, content in texts.items():
        with whole_file(folder / f"{sheet.name}.{ending}") as file:
            file.write(content.encode("utf-8", "backslashreplace"))


def _finite(value: Any) -> Any:
    """The same without numbers that JSON does not have: they become null, as what was not measured is."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def page(sheet: Sheet) -> str:
    """One file that holds everything it needs and asks the network for nothing."""
    figures = [figure(f"chart-{at}", chart) for at, chart in enumerate(sheet.charts)]
    charts = [section(chart.title, "", figure_html(drawn)) for chart, drawn in zip(sheet.charts, figures, strict=True)]
    setup = " · ".join(f"{what} {value}" for what, value in sheet.setup)
    words = "".join(f"<p>{text(sentence)}</p>" for sentence in sheet.words)
    body = (f"<header><h1>{text(sheet.title)}</h1><p class='sub'>{text(setup)}</p></header>", words)
    drawn = script_json(_finite([asdict(one) for one in figures]))
    head = HEAD.format(policy=POLICY, style=asset("report.css"), before="")
    return (
        head.replace("ddptrace report", text(sheet.title), 1)
        + "\n".join([*body, *charts, *map(_grid, notes_once(sheet.grids))])
        + TAIL.format(plotly=plotly_js(), figures=drawn, script=asset("report.js"))
    )


def figure(key: str, chart: Chart) -> Figure:
    """What plotly.js draws of a chart."""
    draw = _points if chart.kind == "line" else _bars
    data = [draw(line, *look) for line, look in zip(chart.lines, looks(chart.lines), strict=True)]
    xs, ys = ([value for line in chart.lines for value in getattr(line, name)] for name in ("x", "y"))
    names = {"type": "category", "showgrid": False} if any(isinstance(x, str) for x in xs) else {}
    axes = {
        "xaxis": axis(plain(chart.x_title), **((_log(xs) if chart.log_x and not names else {}) | names)),
        "yaxis": axis(plain(chart.y_title), **(_log(ys) if chart.log_y else {"rangemode": "tozero"})),
    }
    bars = {"barmode": "stack" if chart.kind == "stack" else "group", "bargap": 0.35}
    beside = len(data) > LEGEND_ABOVE_MAX
    legend = {"legend": {"orientation": "v", "x": 1.01, "y": 1, "traceorder": "normal"}} if beside else {}
    height = max(HEIGHT_PX, 140 + LEGEND_ROW_PX * len(data)) if beside else HEIGHT_PX
    return Figure(key, height, data, layout(**axes, **bars, **legend, showlegend=True), chart.caption)


def looks(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Colour and dash of each: one colour for lines of one kin, and where colours run out, other dashes."""
    kins = list(dict.fromkeys(line.kin or f"alone {at}" for at, line in enumerate(lines)))
    found, used = [], Counter[str]()
    for at, line in enumerate(lines):
        place = kins.index(line.kin or f"alone {at}")
        colour = PALETTE[place % len(PALETTE)]
        found.append((colour, DASHES[used[colour] % len(DASHES)]))
        used[colour] += 1
    return found


def _log(values: Sequence[float | str | None]) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 with their whole values, or at every digit where there is less than a decade."""
    known = [value for value in values if isinstance(value, float | int) and value > 0]
    wide = bool(known) and max(known) >= 10 * min(known)
    return {"type": "log", "tickformat": ",.3~r"} | ({"dtick": "D2"} if wide else {})


def _points(line: Line, colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(line.name),
        "x": _x(line),
        "y": list(line.y),
        "line": {"color": colour, "dash": dash},
        **_errors(line, colour),
    }


def _bars(line: Line, colour: str, dash: str) -> dict[str, Any]:
    marker = {"color": colour, "line": {"width": 0}}
    return {
        "type": "bar",
        "name": plain(line.name),
        "x": _x(line),
        "y": list(line.y),
        "marker": marker,
        **_errors(line, ERROR_COLOUR),
    }


def _x(line: Line) -> list[float | str]:
    return [plain(x) if isinstance(x, str) else x for x in line.x]


def _errors(line: Line, colour: str) -> dict[str, Any]:
    """Bars from each y to the ends of its interval."""
    if not line.low:
        return {}
    up, down = (
        [None if y is None or end is None else abs(end - y) for y, end in zip(line.y, ends, strict=True)]
        for ends in (line.high, line.low)
    )
    ends = {"array": up, "arrayminus": down, "symmetric": False}
    return {"error_y": {"type": "data", **ends, "thickness": 1.3, "width": 3, "color": colour}}


def _grid(grid: Grid) -> str:
    rows = [[text(cell) for cell in row] for row in grid.rows]
    return section(grid.title, grid.note, table([(head, "") for head in grid.heads], rows))
