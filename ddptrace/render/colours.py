"""The colours of a printed view on a terminal, and its lines cut to the terminal's width. The words stay the same."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ddptrace.render.watch.view import STYLES

if TYPE_CHECKING:
    from rich.text import Text

PATTERNS: Final = {
    r"^  error\b": STYLES["bad"],
    r"^  warning\b": STYLES["warning"],
    r"^  info\b": STYLES["faint"],
    r"`[^`]+`": STYLES["line"],
    "[█▉▊▋▌▍▎▏]+": STYLES["line"],
}
"""What has which style within a line."""
DEEPER: Final = "  "
"""How much further in the rest of a cut line stands."""
LEAST: Final = 20
"""Columns for words, however narrow the terminal is."""


def print_coloured(text: str) -> None:
    """Print a view of plain lines to the terminal on stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(coloured(text, console.width), soft_wrap=True)


def coloured(text: str, width: int) -> Text:
    """Return what rich prints for a view of plain lines: no line is wider than `width` columns."""
    from rich.text import Text

    drawn = []
    for line, below in pairwise((*text.split("\n"), "")):
        style = STYLES["head"] if _is_heading(line, below) else ""
        drawn += [Text(part, style) for part in _cut(line, width)]
    for one in drawn:
        for pattern, style in PATTERNS.items():
            one.highlight_regex(pattern, style)
    return Text("\n").join(drawn)


def _is_heading(line: str, below: str) -> bool:
    return bool(line) and not line.startswith(" ") and below.startswith("  ")


def _cut(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, max(width, len(indent) + LEAST), subsequent_indent=indent + DEEPER, break_on_hyphens=False
    )
