"""Figures that stand alone, with title, caption and the report's colours; and as files: SVG, PNG or PDF.

A Chrome or Chromium draws the files; it needs no screen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddptrace.errors import DdptraceError
from ddptrace.render.figure import Figure as Drawing
from ddptrace.render.whole_file import whole_file
from ddptrace.schema import run_path

if TYPE_CHECKING:
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]
FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'
CAPTION_COLUMNS, CAPTION_PX, LINE_PX, TITLE_PX = 130, 12, 22, 36
FORMATS: Final = ("svg", "png", "pdf")
WIDTH_PX: Final = 1000
BROWSER: Final = Path(__file__).with_name("browser.py")
WANTED: Final = "wanted.json"
START_S: Final = 60
EACH_S: Final = 30
"""Many times as long as a browser takes to start, or to draw one figure, even on a busy machine."""


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


def write_images(figures: Mapping[str, Figure], folder: str | os.PathLike[str], format: str = "svg") -> list[Path]:
    """Write each figure to a file.

    Args:
        figures: Figures by name.
        folder: Folder for NAME.svg, NAME.png or NAME.pdf; made if missing.
        format: "svg", "png" (at twice the resolution) or "pdf".

    Returns:
        The paths of the files.

    Raises:
        DdptraceError: kaleido or a browser is missing, or the browser fails.
    """
    if format not in FORMATS:
        raise DdptraceError(f"figures cannot be written as {format!r}: choose one of {', '.join(FORMATS)}")
    _check_kaleido()
    folder = run_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{format}" for name in figures]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as drawing:
        drawn = [Path(drawing, path.name) for path in paths]
        wanted = [_wanted(figure, path, format) for figure, path in zip(figures.values(), drawn, strict=True)]
        if wanted:
            _draw(wanted, drawing)
        for one, path in zip(drawn, paths, strict=True):  # whole or not at all; kaleido would empty the file first
            with whole_file(path) as file:
                file.write(one.read_bytes())
    return paths


def _check_kaleido() -> None:
    try:
        found = find_spec("kaleido.errors") is not None  # which older versions do not have
    except ModuleNotFoundError:
        found = False
    if not found:
        raise DdptraceError("drawing needs kaleido, version 1 or newer: pip install 'ddptrace[images]'")


def _wanted(figure: Figure, path: Path, format: str) -> dict[str, Any]:
    width, scale = figure.layout.width or WIDTH_PX, 2 if format == "png" else 1
    size = {"width": width, "height": figure.layout.height, "scale": scale}
    return {"fig": figure.to_json(), "path": str(path), "opts": {"format": format, **size}}


def _draw(wanted: list[dict[str, Any]], folder: str) -> None:
    """Draw all figures with one browser, in a process that can be killed: kaleido may wait for its browser for ever.

    Their temporary files are in `folder`, which the caller removes.
    """
    Path(folder, WANTED).write_text(json.dumps(wanted))
    patience_s = START_S + EACH_S * len(wanted)
    command = [
        sys.executable,
        "-P",
        str(BROWSER),
        str(Path(folder, WANTED)),
    ]  # -P: no modules from the current directory
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": folder}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        try:
            told, warned = asking.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            message = f"the browser could not draw the figures: it has not answered in {patience_s} s"
            raise DdptraceError(message) from None
        finally:
            asking.kill()  # the browser ends with it
    if asking.returncode:
        last = (warned.strip() or "its helper process was killed").splitlines()[-1]
        raise DdptraceError(told.strip() or f"the browser could not draw the figures: {last}")
