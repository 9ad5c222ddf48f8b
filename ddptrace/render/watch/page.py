"""A run that goes on as a screen of any size, or as plain lines. What stands in a line is never markup, nor obeyed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ddptrace.errors import printable
from ddptrace.render.watch.parts import (
    breakdown_lines,
    bucket_lines,
    finding_lines,
    head_lines,
    rank_lines,
    unit_lines,
)
from ddptrace.render.watch.view import STYLES, Line, View
from ddptrace.render.watch.words import status_lines
from ddptrace.units import counted

if TYPE_CHECKING:
    from rich.text import Text

Section = Callable[[int], list[Line]]
"""Gives no more lines than there is room for."""

BRIEF: Final = 17
"""With fewer lines only what matters most is said."""
ROOMY: Final = 19
"""Lines from which on a blank one stands between sections."""
UNBOUNDED: Final = 10_000
PAGE: Final = 50
"""Lines of a view that is printed."""
LEAST: Final = (3, 2, 2, 2)
"""Lines of findings, ranks, buckets and other units, before one of them gets more."""


def screen(view: View, width: int, height: int) -> Text:
    """Exactly so many lines, none wider."""
    lines = _lines(view, width, height - 1)
    rest: list[Line] = [()] * (height - 1 - len(lines))
    return text([*lines, *rest, _footer(view)], width)


def snapshot(view: View, width: int, height: int = PAGE) -> Text:
    """So many lines at most, without what only a screen needs."""
    return text(_lines(view, width, height), width)


def text(lines: Sequence[Line], width: int) -> Text:
    """What rich draws: no line is wrapped, and one that is too wide ends in an ellipsis."""
    from rich.text import Text

    drawn = []
    for line in lines:
        one = Text.assemble(*((printable(words), STYLES.get(style, "")) for words, style in line))
        one.truncate(width, overflow="ellipsis")
        drawn.append(one)
    joined = Text("\n", no_wrap=True, overflow="crop").join(drawn)
    joined.no_wrap, joined.overflow = True, "crop"
    return joined


def _lines(view: View, width: int, height: int) -> list[Line]:
    gap: list[Line] = [()] if height >= ROOMY else []
    top = _top(view, width, gap, briefly=height < BRIEF)[:height]
    return [*top, *_body(view, width, height - len(top), gap)]


def _top(view: View, width: int, gap: list[Line], *, briefly: bool) -> list[Line]:
    breakdown = [] if view.last is None else breakdown_lines(view.last.summary, width, briefly=briefly)
    return [*head_lines(view, width), *status_lines(view, width), *(gap if breakdown else []), *breakdown]


def _sections(view: View, width: int) -> tuple[Section, ...]:
    """Findings, ranks, buckets, other units: in the order in which they get room."""
    last = view.last
    found = [] if last is None else list(last.result.findings)
    return (
        lambda room: finding_lines(found, view.notes, width, room),
        lambda room: rank_lines(view, width, room),
        lambda room: [] if last is None else bucket_lines(last, width, room),
        lambda room: [] if last is None else unit_lines(last, width, room),
    )


def _body(view: View, width: int, room: int, gap: list[Line]) -> list[Line]:
    """Each section has its least, then all get more in turn until they have what they want or nothing is left."""
    sections = _sections(view, width)
    wanted = [len(section(UNBOUNDED)) for section in sections]
    given = [0] * len(sections)
    for at, least in enumerate(LEAST):
        cost = min(least, wanted[at]) + len(gap)
        if wanted[at] and cost <= room:
            given[at], room = cost - len(gap), room - cost
    while room > 0 and any(0 < have < want for have, want in zip(given, wanted, strict=True)):
        for at in range(len(given)):
            if room > 0 and 0 < given[at] < wanted[at]:
                given[at], room = given[at] + 1, room - 1
    findings, ranks, buckets, others = (section(most) for section, most in zip(sections, given, strict=True))
    return [line for one in (buckets, others, ranks, findings) if one for line in (*gap, *one)]


def _footer(view: View) -> Line:
    steps = 0 if view.last is None else max(row.steps for row in view.last.result.ranks)
    told = [] if view.every_s is None else [f"looks every {view.every_s:.2g} s"]
    told += [f"of the last {counted(steps, 'step')}"] if steps else []
    told += ["q or Ctrl-C ends"] if view.keys else ["Ctrl-C ends"]
    return ((" · ".join(told), "faint"),)
