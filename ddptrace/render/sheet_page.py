"""A benchmark's sheet as files: Markdown, JSON with every measurement, and one HTML page with its charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Final

from ddptrace.render.figures import Figure, axis, layout, plain
from ddptrace.render.markup import figure_html, section, table
from ddptrace.render.report import HEAD, POLICY, TAIL, asset, plotly_js, script_json
from ddptrace.render.sheet import Chart, Grid, Line, Sheet, markdown
from ddptrace.render.whole_file import whole_file

PALETTE: Final = ("#41729f", "#e4683a", "#3f8f8b", "#9a6fb8", "#d9b44a", "#7a9e59", "#868e99", "#b5485d")


def write_sheet(sheet: Sheet, data: Mapping[str, Any], folder: Path) -> None:
    """Write NAME.md, NAME.json (`data` beside the sheet) and NAME.html, each whole or not at all."""
    texts = {
        "md": markdown(sheet),
        "json": json.dumps({"sheet": asdict(sheet), **data}, indent=1),
        "html": page(sheet),
    }
    for ending, text in texts.items():
        with whole_file(folder / f"{sheet.name}.{ending}") as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def page(sheet: Sheet) -> str:
    """One file that holds everything it needs and asks the network for nothing."""
    figures = [figure(f"chart-{at}", chart) for at, chart in enumerate(sheet.charts)]
    charts = [
        section(chart.title, chart.caption, figure_html(drawn))
        for chart, drawn in zip(sheet.charts, figures, strict=True)
    ]
    setup = " · ".join(f"{what} {value}" for what, value in sheet.setup)
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in sheet.words)
    body = (f"<header><h1>{escape(sheet.title)}</h1><p class='sub'>{escape(setup)}</p></header>", words)
    return (
        HEAD.format(policy=POLICY, style=asset("report.css")).replace("ddptrace report", escape(sheet.title), 1)
        + "\n".join([*body, *charts, *map(_grid, sheet.grids)])
        + TAIL.format(plotly=plotly_js(), figures=script_json([asdict(f) for f in figures]), script=asset("report.js"))
    )


def figure(key: str, chart: Chart) -> Figure:
    """What plotly.js draws of a chart."""
    data = [
        _points(line, colour) if chart.kind == "line" else _bars(line, colour)
        for line, colour in zip(chart.lines, _colours(len(chart.lines)), strict=True)
    ]
    names = {"type": "category"} if any(isinstance(x, str) for line in chart.lines for x in line.x) else {}
    axes = {
        "xaxis": axis(plain(chart.x_title), **(({"type": "log"} if chart.log_x else {}) | names)),
        "yaxis": axis(plain(chart.y_title), **({"type": "log"} if chart.log_y else {"rangemode": "tozero"})),
    }
    barmode = {"barmode": "stack" if chart.kind == "stack" else "group"}
    return Figure(key, 380, data, layout(**axes, **barmode), chart.caption)


def _colours(count: int) -> Sequence[str]:
    return [PALETTE[at % len(PALETTE)] for at in range(count)]


def _points(line: Line, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": plain(line.name), "x": _x(line), "y": list(line.y),
        "line": {"color": colour}, **_errors(line),
    }  # fmt: skip


def _bars(line: Line, colour: str) -> dict[str, Any]:
    marker = {"color": colour, "line": {"width": 0}}
    return {
        "type": "bar", "name": plain(line.name), "x": _x(line), "y": list(line.y), "marker": marker,
        **_errors(line),
    }  # fmt: skip


def _x(line: Line) -> list[float | str]:
    return [plain(x) if isinstance(x, str) else x for x in line.x]


def _errors(line: Line) -> dict[str, Any]:
    """Bars from each y to the ends of its interval."""
    if not line.low:
        return {}
    up, down = (
        [None if y is None or end is None else abs(end - y) for y, end in zip(line.y, ends, strict=True)]
        for ends in (line.high, line.low)
    )
    return {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1}}


def _grid(grid: Grid) -> str:
    rows = [[escape(cell) for cell in row] for row in grid.rows]
    return section(grid.title, grid.note, table([(head, "") for head in grid.heads], rows))
