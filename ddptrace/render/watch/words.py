"""How a run that is watched goes, in words."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Final

from ddptrace.errors import printable
from ddptrace.render.watch.view import Line, RankView, View
from ddptrace.units import counted, named, percent

BARS: Final = "▁▂▃▄▅▆▇█"
FEWEST_FOR_TREND: Final = 12
STEADY_RATIO: Final = 0.1
"""So far two thirds of the steps may differ in their median."""


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
