"""The parts of the screen of a watched run, each in as many lines as there is room for.

At the top: which run, how far it is, how long a step takes and where the time goes. Below: buckets, ranks, findings.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis.ranks.digest import RankDigest
from ddptrace.analysis.summary import BucketSummary, RankSummary, Share, Summary
from ddptrace.analysis.units.digest import units
from ddptrace.errors import printable
from ddptrace.findings import WATCH_INCOMPLETE, Finding, gravest_first
from ddptrace.render.terminal import overlap_words, placed
from ddptrace.render.units import role_words
from ddptrace.render.watch.view import (
    STATES,
    LastSteps,
    Line,
    Piece,
    RankView,
    View,
    seconds_words,
    sparkline,
    trend_words,
    width_of,
)
from ddptrace.render.words import PARTS, both_ends, bucket_numbers, by_order, cut, hidden_words
from ddptrace.units import NOT_MEASURED, counted, duration, millis, percent, size

GLYPHS: Final = {"compute": "█", "exposed_comm": "▓", "exposed_memory": "▒", "idle": "░"}
"""They differ even without colour."""
LEAST_SPARK: Final = 8
STATE_STYLES: Final = {"gone": "bad", "silent": "bad", "running": "good", "ended": "faint"}
SHORT: Final = {"exposed_comm": "exposed comm", "exposed_memory": "exposed copies"}
Column = tuple[str, int, list[Piece]]
"""Heading, width, and a cell of each row. The first column is on the left of its room, others on the right."""
LEAST_BAR: Final = 10
UNIT_WIDTH: Final = 20
SEVERITY_STYLES: Final = {"error": "bad", "warning": "warning", "info": "faint"}
INDENT: Final = 10
FEW_LINES: Final = 2
"""Of each finding, where there is no room for all of it."""


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
    length = duration(None if summary.typical is None else summary.typical.wall_ns)
    pieces: list[Piece] = [("step ", ""), (length, "head")]
    if trend and width_of(pieces) + 3 + len(trend) <= width:
        pieces += [(" · ", ""), (trend, style)]
    room = width - width_of(pieces) - 2
    return (*pieces, ("  ", ""), (sparkline(lengths, room), "line")) if room >= LEAST_SPARK else tuple(pieces)


def breakdown_lines(summary: Summary, width: int, *, briefly: bool) -> list[Line]:
    """One bar for the step, what its parts are, and how much of the communication is hidden. `briefly`: the bar."""
    typical = summary.typical
    if typical is None:
        return []
    lines: list[Line] = [bar_line(summary.parts, width), _legend(summary.parts, width)] if summary.parts else []
    if briefly:
        return lines
    mean = f"mean of {counted(typical.steps, 'rank-step')}"
    room = width - len("Typical step  ")
    told = _fitting(
        room, *(f"{duration(typical.window_ns)}  ({one})" for one in (f"{mean}: {typical.population}", mean))
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


def bucket_lines(last: LastSteps, width: int, room: int) -> list[Line]:
    """The most exposed ones that there is room for, by index; what was not sent lately is not shown."""
    sent = [bucket for bucket in last.summary.buckets if bucket.comm_ns]
    shown = sorted(sent[: room - 1], key=lambda one: (one.reducer, one.layout, one.index))
    if not shown or room < FEW_LINES:
        return []
    which = f"  the {len(shown)} most exposed of {len(sent)}" if len(shown) < len(sent) else ""
    how = "  numbered as launched" if by_order(last.result) else ""
    columns: list[Column] = [
        ("Buckets", max(8, *map(len, bucket_numbers(shown))), [(name, "") for name in bucket_numbers(shown)]),
        ("size", 9, [(size(bucket.nbytes), "") for bucket in shown]),
        ("hidden ms", 10, [(millis(bucket.hidden_ns), "") for bucket in shown]),
        ("exposed ms", 11, [(millis(bucket.exposed_charged_ns), "") for bucket in shown]),
        ("of step", 8, [(percent(bucket.step_ratio), "") for bucket in shown]),
    ]
    lines = table(columns, width, which + how)
    drawn = (_with_bar(line, bucket, sent, width) for line, bucket in zip(lines[1:], shown, strict=False))
    return [*lines[:1], *drawn]


def _with_bar(line: Line, bucket: BucketSummary, every: Sequence[BucketSummary], width: int) -> Line:
    """Its hidden and its exposed time, as long as those of the longest bucket fill the room."""
    room = width - sum(len(words) for words, _ in line) - 2
    longest = max((one.hidden_ns or 0) + (one.exposed_charged_ns or 0) for one in every)
    if room < LEAST_BAR or not longest:
        return line
    hidden, exposed = (round(room * (ns or 0) / longest) for ns in (bucket.hidden_ns, bucket.exposed_charged_ns))
    bar = (GLYPHS["compute"] * hidden, "hidden"), (GLYPHS["exposed_comm"] * exposed, "exposed_comm")
    return (*line, ("  ", ""), *bar)


def unit_lines(last: LastSteps, width: int, room: int) -> list[Line]:
    """The most exposed units that are no bucket, as far as there is room."""
    found = [unit for unit in units(last.result).units if unit.exposed_charged_ns]
    shown = found[: room - 1]
    if not shown or room < FEW_LINES:
        return []
    which = f"  the {len(shown)} most exposed of {len(found)}" if len(shown) < len(found) else ""
    columns: list[Column] = [
        ("Units", UNIT_WIDTH, [(both_ends(printable(unit.name), UNIT_WIDTH), "") for unit in shown]),
        ("role", 25, [(role_words(unit), "faint") for unit in shown]),
        ("exposed ms", 11, [(millis(unit.exposed_charged_ns), "") for unit in shown]),
        ("of step", 8, [(percent(unit.step_ratio), "") for unit in shown]),
        ("hidden", 8, [(hidden_words(unit.hidden_ns, unit.comm_ns), "") for unit in shown]),
        ("size", 9, [(size(unit.nbytes), "") for unit in shown]),
    ]
    return table(columns, width, which)


@dataclass(frozen=True, slots=True)
class _Rank:
    """All that is told of one."""

    view: RankView
    summary: RankSummary | None
    digest: RankDigest | None

    @property
    def worst_first(self) -> tuple[int, float, int, int]:
        lag = None if self.digest is None else self.digest.lag
        late = 0.0 if lag is None else lag.last_ratio * (lag.blame_ns or 0)
        return (
            STATES.index(self.view.state),
            -late,
            0 if self.summary is None else -self.summary.wall_ns,
            self.view.rank,
        )


def rank_lines(view: View, width: int, room: int) -> list[Line]:
    """Of more ranks than there is room for, the worst, and how many others."""
    told = {} if view.last is None else {rank.rank: rank for rank in view.last.summary.ranks}
    met = {} if view.last is None else view.last.meetings
    ranks = [_Rank(rank, told.get(rank.rank), met.get(rank.rank)) for rank in view.ranks]
    if not ranks or room < FEW_LINES:
        return []
    fits = len(ranks) <= room - 1
    worst = sorted(ranks, key=lambda one: one.worst_first)[: room - 1 if fits else max(1, room - 2)]
    shown = sorted(worst, key=lambda one: one.view.rank) if fits else worst
    lines = table(_rank_columns(shown), width, "" if fits else f"  the worst of {len(ranks)}")
    rest = {rank.view.rank for rank in ranks} - {one.view.rank for one in shown}
    return (
        lines
        if not rest or room <= FEW_LINES
        else [*lines, _others([rank for rank in ranks if rank.view.rank in rest])]
    )


def _rank_columns(shown: Sequence[_Rank]) -> list[Column]:
    walls = [None if rank.summary is None else rank.summary.wall_ns for rank in shown]
    waits = [None if rank.digest is None else rank.digest.waits_ns for rank in shown]
    return [
        ("Ranks", 8, [(str(rank.view.rank), "") for rank in shown]),
        ("state", 9, [(rank.view.state, STATE_STYLES[rank.view.state]) for rank in shown]),
        ("last record", 17, [(f"{seconds_words(one.view.silent_ns / 1e9)} ago", "") for one in shown]),
        ("step ms", 10, [(millis(ns), "") for ns in walls]),
        ("waits ms", 10, [(millis(ns), "") for ns in waits]),
        ("last to arrive, by", 20, [(_late(rank.digest), "") for rank in shown]),
    ]


def _late(digest: RankDigest | None) -> str:
    """As in "83 %, 3.10 ms"."""
    if digest is None or not digest.lag.last:
        return NOT_MEASURED
    return f"{percent(digest.lag.last_ratio)}, {duration(digest.lag.blame_ns)}"


def _others(ranks: Sequence[_Rank]) -> Line:
    states = Counter(rank.view.state for rank in ranks)
    told = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    return ((f"… and {counted(len(ranks), 'other')}: {told}", "faint"),)


def table(columns: Sequence[Column], width: int, remark: str = "") -> list[Line]:
    """A heading and the rows, two columns in from the left; of the columns the first ones that fit. `remark`: behind
    the first heading where there is room behind the last one."""
    used, fitting = 2, []
    for column in columns:
        used += column[1]
        if used > width:
            break
        fitting.append(column)
    if not fitting:
        return []
    first, *others = fitting
    heads: Line = ((f"{first[0]:<{first[1] + 2}}", "head"), *((f"{head:>{room}}", "faint") for head, room, _ in others))
    rows = zip(*(cells for _, _, cells in fitting), strict=True)
    lines = [_table_line(row, [room for _, room, _ in fitting]) for row in rows]
    has_room = sum(room for _, room, _ in fitting) + 2 + len(remark) <= width
    return [(*heads, (remark, "faint")) if remark and has_room else heads, *lines]


def _table_line(cells: Sequence[Piece], rooms: Sequence[int]) -> Line:
    (name, style), *others = cells
    right = tuple((f"{words:>{room}}", how) for (words, how), room in zip(others, rooms[1:], strict=True))
    return (("  ", ""), (f"{name:<{rooms[0]}}", style), *right)


def finding_lines(findings: Sequence[Finding], notes: Sequence[str], width: int, room: int) -> list[Line]:
    """The most important first, what is the same of several ranks once; clipped to the room."""
    every = foremost([*(WATCH_INCOMPLETE("run", note) for note in notes), *findings])
    told = [(finding.severity, placed(finding)) for finding in every]
    parts = [_told(severity, words, width) for severity, words in dict.fromkeys(told)]
    if not parts or room < FEW_LINES:
        return []
    if sum(map(len, parts)) > room - 1:
        parts = [_clipped(lines, FEW_LINES) for lines in parts]
    shown: list[list[Line]] = []
    for lines in parts:
        left = room - 1 - sum(map(len, shown))
        if left > 0:
            shown.append(_clipped(lines, left))
    some = f"  {len(shown)} of {len(parts)}" if len(shown) < len(parts) else ""
    return [(("Findings", "head"), (some, "faint")), *(line for lines in shown for line in lines)]


def foremost(findings: Sequence[Finding]) -> list[Finding]:
    """Errors, then warnings, then the rest; in each what says what to do next before the others."""
    return gravest_first(sorted(findings, key=lambda finding: not finding.kind.is_advice))


def _told(severity: str, words: str, width: int) -> list[Line]:
    wrapped = textwrap.wrap(printable(words), max(10, width - INDENT))
    style = SEVERITY_STYLES.get(severity, "")
    heads: list[Piece] = [(f"  {severity:<{INDENT - 2}}", style), *[(" " * INDENT, "")] * (len(wrapped) - 1)]
    return [(head, (line, "")) for head, line in zip(heads, wrapped, strict=False)]


def _clipped(lines: list[Line], most: int) -> list[Line]:
    if len(lines) <= most:
        return lines
    head, (words, style) = lines[most - 1]
    return [*lines[: most - 1], (head, (f"{words.rpartition(' ')[0]} …", style))]
