"""How a line of the program is written."""

from __future__ import annotations

from ddptrace.schema import THROUGH


def line_words(site: str | None, through: str | None) -> str | None:
    """As in "train.py:42 in step, through deepspeed/runtime/engine.py:13 in reduce"; None if no line is known."""
    return f"{site}{THROUGH}{through}" if through else site
