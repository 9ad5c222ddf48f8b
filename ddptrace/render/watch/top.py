"""The upper part of the screen of a run that is watched: which run, how far, how long a step takes, where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddptrace.analysis.summary import Share, Summary
from ddptrace.errors import printable
from ddptrace.render.terminal import overlap_words
from ddptrace.render.watch.view import STATES, Line, Piece, View, width_of
from ddptrace.render.watch.words import sparkline, trend_words
from ddptrace.render.words import PARTS, cut
from ddptrace.units import counted, duration, millis, percent

GLYPHS: Final = {"compute": "█", "exposed_comm": "▓", "exposed_memory": "▒", "idle": "░"}
"""They differ where nothing has a colour."""
LEAST_SPARK: Final = 8
STATE_STYLES: Final = {"gone": "bad", "silent": "bad", "running": "good", "ended": "faint"}
SHORT: Final = {"exposed_comm": "exposed comm", "exposed_memory": "exposed copies"}


def head_lines(view: View, width: int) -> list[Line]:
    """Run, ranks and steps; then the step's length."""
    lines = [_title(view, width), *([_ranks(view)] if view.ranks else [])]
    if view.last is not None and view.last.summary.wall_ns is not None:
        lines.append(_pace(view.last.summary, view.last.lengths_ns, width))
    return lines


def _title(view: View, width: int) -> Line:
    run = f"run {printable(view.run_id)[:8]}" if view.run_id else ""
    attempt = f"attempt {view.attempt}, started anew" if view.attempt else ""
    told = " · ".join(filter(None, (run, attempt)))
    left = (("ddptrace watch", "head"), ("  ", ""), (cut(view.path, max(8, width - 18 - len(told))), ""))
    return (*left, (" " * (width - width_of(left) - len(told)), ""), (told, "faint"))


def _ranks(view: View) -> Line:
    pieces: list[Piece] = []
    for state in STATES[::-1]:
        if view.of(state):
            told = f"{counted(len(view.of(state)), 'rank')} {state}"
            pieces += [(" · " if pieces else "", ""), (told, STATE_STYLES[state])]
    steps = max(rank.steps for rank in view.ranks)
    return (*pieces, (" · ", ""), (counted(steps, "step"), "head"))


def _pace(summary: Summary, lengths: Sequence[float], width: int) -> Line:
    """The step's length is that of the typical one, as everywhere; the trend is of all steps that are held."""
    trend, style = trend_words(lengths)
    pieces: list[Piece] = [("step ", ""), (duration(summary.wall_ns), "head")]
    if trend and width_of(pieces) + 3 + len(trend) <= width:
        pieces += [(" · ", ""), (trend, style)]
    room = width - width_of(pieces) - 2
    return (*pieces, ("  ", ""), (sparkline(lengths, room), "line")) if room >= LEAST_SPARK else tuple(pieces)


def breakdown_lines(summary: Summary, width: int, *, briefly: bool) -> list[Line]:
    """One bar for the step, what its parts are, and how much of the communication is hidden. `briefly`: the bar."""
    if summary.window_ns is None:
        return []
    lines: list[Line] = [bar_line(summary.parts, width), _legend(summary.parts, width)] if summary.parts else []
    if briefly:
        return lines
    mean = f"mean of {counted(summary.steps, 'rank-step')}"
    room = width - len("Typical step  ")
    told = _fitting(
        room, *(f"{duration(summary.window_ns)}  ({one})" for one in (f"{mean}: {summary.population}", mean))
    )
    return [(("Typical step", "head"), (f"  {told}", "faint")), *lines, ((_overlap(summary, width), ""),)]


def _overlap(summary: Summary, width: int) -> str:
    """What the report says, with as much of its evidence as there is room for."""
    first = overlap_words(summary).partition(". ")[0].rstrip(".")
    said, _, evidence = first.partition(" (")
    return _fitting(width, first, f"{said} ({evidence.partition(':')[0]})" if evidence else said, said)


def _fitting(width: int, *told: str) -> str:
    """The first that fits, else the last."""
    return next((words for words in told if len(words) <= width), told[-1])


def bar_line(parts: Sequence[Share], width: int) -> Line:
    """All parts together are as wide as the screen; what is not nothing has a column at least."""
    columns = [max(1, round(part.ratio * width)) if part.ns else 0 for part in parts]
    while columns and sum(columns) != width:
        largest = max(range(len(columns)), key=columns.__getitem__)
        columns[largest] += 1 if sum(columns) < width else -1
    return tuple((GLYPHS[part.name] * count, part.name) for part, count in zip(parts, columns, strict=True) if count)


def _legend(parts: Sequence[Share], width: int) -> Line:
    """With the report's own names where there is room."""
    lines = [_named(parts, names, with_ms=with_ms) for with_ms in (True, False) for names in (PARTS, PARTS | SHORT)]
    return next((line for line in lines if width_of(line) <= width), lines[-1])


def _named(parts: Sequence[Share], names: dict[str, str], *, with_ms: bool) -> Line:
    pieces: list[Piece] = []
    for part in parts:
        if part.ns or part.name != "exposed_memory":
            figure = f" {millis(part.ns)} ms" if with_ms else ""
            told = f" {names[part.name]}{figure} {percent(part.ratio)}"
            pieces += [("   " if pieces else "", ""), (GLYPHS[part.name], part.name), (told, "")]
    return tuple(pieces)
