"""What a benchmark has found, ready to be read: sentences, tables and charts, as plain data; and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ddptrace.errors import printable

TAG: Final = re.compile("<(?=[a-zA-Z/!?])")


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text. `note`: a sentence under it, on what the columns mean."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one name. `low` and `high`: the interval around each y, or empty. x may be numbers or names. Lines of
    the same `kin` have one colour and differ by their dashes."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    kin: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Chart:
    """`kind`: "line" with points, "bars" side by side, or "stack" of bars on each other."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    kind: Literal["line", "bars", "stack"] = "line"
    log_x: bool = False
    log_y: bool = False
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """`name`: of its files. `setup`: what it was measured on, as (what, value). `words`: what the numbers say, one
    sentence or two each; each states the numbers it rests on."""

    name: str
    title: str
    setup: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    grids: tuple[Grid, ...]
    charts: tuple[Chart, ...] = field(default=())


def markdown(sheet: Sheet) -> str:
    parts = [f"# {_plain(sheet.title)}", " · ".join(_plain(f"{what} {value}") for what, value in sheet.setup)]
    parts += map(_plain, sheet.words)
    for grid in notes_once(sheet.grids):
        parts += [f"## {_plain(grid.title)}", _table(grid)] + ([_plain(grid.note)] if grid.note else [])
    return "\n\n".join(parts) + "\n"


def notes_once(grids: Sequence[Grid]) -> Iterator[Grid]:
    """The same tables, a note that an earlier one had left out: it holds for all of them."""
    said = set[str]()
    for grid in grids:
        yield replace(grid, note="") if grid.note in said else grid
        said.add(grid.note)


def _table(grid: Grid) -> str:
    rows = [grid.heads, *grid.rows]
    widths = [max(len(_cell(row[at])) for row in rows) for at in range(len(grid.heads))]
    lines = [_markdown_row(row, widths) for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _markdown_row(row: Sequence[str], widths: Sequence[int]) -> str:
    return "|" + "|".join(f" {_cell(cell):<{width}} " for cell, width in zip(row, widths, strict=True)) + "|"


def _cell(text: str) -> str:
    return _plain(text.replace("\n", " ")).replace("|", "\\|")


def _plain(words: str) -> str:
    """Words as Markdown must be given them, so that no name in them becomes a tag, a link or a picture."""
    return TAG.sub("&lt;", printable(words)).replace("](", "]\\(")
