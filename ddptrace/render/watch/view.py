"""What a screen shows of a run that goes on, as plain records, and in words how it goes."""

from __future__ import annotations

import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles
from typing import Final, Literal

from ddptrace.analysis.ranks.digest import RankDigest, match_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, summarize
from ddptrace.errors import printable
from ddptrace.units import counted, named, percent

State = Literal["gone", "silent", "ended", "running"]
STATES: Final[tuple[State, ...]] = ("gone", "silent", "ended", "running")
"""In the order in which ranks are listed. "silent": no record of its training for a while; "gone": it ended without
reporting an error."""

Piece = tuple[str, str]
"""Words, and how they look: "" or a name of `STYLES`."""
Line = tuple[Piece, ...]

STYLES: Final = {
    "head": "bold",
    "faint": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "compute": "green",
    "exposed_comm": "red",
    "exposed_memory": "magenta",
    "idle": "dim",
    "hidden": "green",
    "line": "cyan",
}
"""Of a terminal's own colours only those that can be read on light and on dark ground."""

BARS: Final = "▁▂▃▄▅▆▇█"
FEWEST_FOR_TREND: Final = 12
STEADY_RATIO: Final = 0.1
"""So far two thirds of the steps may differ in their median."""


@dataclass(frozen=True, slots=True)
class RankView:
    """`steps`: that it has ended; `silent_ns`: since its newest record of the training."""

    rank: int
    state: State
    steps: int
    silent_ns: int


@dataclass(frozen=True, slots=True)
class LastSteps:
    """What is known of the last steps of all ranks; made once, drawn often. `lengths_ns`: of each step, the mean over
    its ranks; `meetings`: by rank, where it met others."""

    result: Result
    summary: Summary
    lengths_ns: tuple[float, ...]
    meetings: Mapping[int, RankDigest]


def last_steps(result: Result) -> LastSteps:
    lengths: dict[int, list[int]] = defaultdict(list)
    for row in result.steps:
        lengths[row.step].append(row.wall_ns)
    means = tuple(fmean(lengths[step]) for step in sorted(lengths))
    return LastSteps(result, summarize(result), means, {rank.lag.rank: rank for rank in match_digests(result).ranks})


@dataclass(frozen=True, slots=True)
class View:
    """`path`: as the user gave it, for commands to be typed. `ranks`: of the newest attempt; `last`: their last steps,
    None before the first. `left_s`: a job whose ranks are gone may be started anew for so long yet. `notes`: what is
    missing, a sentence each. `every_s`: between two looks, None where there was one only."""

    path: str
    is_there: bool
    run_id: str = ""
    attempt: int = 0
    world_size: int | None = None
    ranks: tuple[RankView, ...] = ()
    last: LastSteps | None = field(default=None, repr=False)
    is_behind: bool = False
    is_over: bool = False
    left_s: float | None = None
    notes: tuple[str, ...] = ()
    every_s: float | None = 1.0
    keys: bool = False  # they are listened to

    def of(self, state: State) -> list[RankView]:
        return [rank for rank in self.ranks if rank.state == state]


def width_of(line: Sequence[Piece]) -> int:
    """In signs; more than columns where one of them takes none, fewer where one takes two."""
    return sum(len(words) for words, _ in line)


def status_lines(view: View, width: int) -> list[Line]:
    """What is to be known first: none where all ranks run and steps are there."""
    told = (
        (line, style)
        for words, style in _statuses(view)
        for line in textwrap.wrap(words, width, break_on_hyphens=False)
    )
    return [((line, style),) for line, style in told]


def _statuses(view: View) -> Iterator[tuple[str, str]]:
    if not view.ranks:
        where = "is there, but no rank has recorded anything yet" if view.is_there else "is not there yet"
        yield f"{view.path} {where}: waiting for a job to write it", "warning"
        return
    if view.is_behind:
        yield "reading what was recorded before …", "faint"
    elif view.last is None and not view.is_over:
        yield f"{counted(len(view.ranks), 'rank')} recording; no step is known to be complete yet", "warning"
    if view.world_size is not None and len(view.ranks) < view.world_size and not view.is_over:
        yield f"{view.world_size - len(view.ranks)} of {counted(view.world_size, 'rank')} have not begun yet", "warning"
    yield from _troubles(view)
    if len(view.of("ended")) == len(view.ranks):
        yield f"ended in order; all of it: {_command('analyze', view)}", "good"


def _troubles(view: View) -> Iterator[tuple[str, str]]:
    gone, silent = view.of("gone"), view.of("silent")
    ask = f"{_command('diagnose', view)} says"
    if gone:
        who = f"all {len(gone)} ranks" if len(gone) == len(view.ranks) > 2 else named("rank", _ranks(gone))
        verb = "is" if len(gone) == 1 else "are"
        yield f"{who} {verb} gone without reporting an error, {_ago(gone)} ago; {ask} more", "bad"
        if view.left_s is not None and not view.is_over:
            yield f"not started anew yet; waiting {seconds_words(view.left_s)} for that", "warning"
    if silent:
        verb = "has" if len(silent) == 1 else "have"
        said = (
            f"{named('rank', _ranks(silent))} {verb} got no further"
            if view.of("running")
            else "no rank has got further"
        )
        yield f"{said} for {_ago(silent)}; {ask} who waits", "bad"


def _ranks(ranks: Sequence[RankView]) -> list[int]:
    return sorted(rank.rank for rank in ranks)


def _ago(ranks: Sequence[RankView]) -> str:
    return seconds_words(min(rank.silent_ns for rank in ranks) / 1e9)


def _command(name: str, view: View) -> str:
    return f"`ddptrace {name} {printable(shlex.quote(view.path))}`"


def seconds_words(seconds: float) -> str:
    """As whoever looks every second sees it: `0.4 s`, `12 s`, `3 min 20 s`."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest values, from nothing on; the median is half as high as there is room for, and twice of it all."""
    shown = values[-width:] if width > 0 else []
    whole = 2 * median(shown) if shown else 0.0
    heights = [int(len(BARS) * value / whole) if whole else 0 for value in shown]
    return "".join(BARS[min(len(BARS) - 1, height)] for height in heights)


def trend_words(lengths: Sequence[float]) -> tuple[str, str]:
    """The last third of the steps beside the first, and how that looks; nothing where there are few. Steady is also
    what differs by less than single steps do: the middle halves of both overlap."""
    if len(lengths) < FEWEST_FOR_TREND:
        return "", ""
    third = len(lengths) // 3
    (lower, before, upper), (low, now, high) = quantiles(lengths[:third]), quantiles(lengths[-third:])
    change = now / before - 1 if before else 0.0
    if abs(change) <= STEADY_RATIO or (low <= upper and lower <= high):
        return "steady", "good"
    how = "slower" if change > 0 else "faster"
    return f"{percent(abs(change))} {how} than {len(lengths) - third} steps ago", "warning" if change > 0 else "good"
