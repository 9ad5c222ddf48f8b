"""Pictures of the ranks together: how far apart they come to the same collective and how long it then takes, and the
critical path. As in figures.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from ddptrace.analysis.ranks.digest import PathShare, path_shares
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import typical_steps
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.render.device.figures import Piece, stacked
from ddptrace.render.figures import COLOURS, Figure, axis, decades, layout, ms, plain
from ddptrace.render.ranks.terminal import moved_name, several
from ddptrace.render.words import named_bucket, op_name, shortened
from ddptrace.units import counted, duration, percent, size

KINDS_MAX: Final = 20
PX_PER_KIND: Final = 26
LEAST_NS: Final = 100
"""Drawn at the left edge of an axis that has no zero."""
NAME_MAX: Final = 48


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many lengths: the median, and what nine in ten of them lie between."""

    low_ns: float
    median_ns: float
    high_ns: float

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Spread:
        ordered, edge = sorted(lengths), len(lengths) // 20
        return cls(ordered[edge], median(ordered), ordered[-1 - edge])


def matches_figure(result: Result) -> Figure | None:
    """A row for each bucket, or op and size, where ranks come furthest apart first."""
    kinds = _kinds(result)
    shown = sorted(kinds, key=lambda name: -median(map(apart_ns, kinds[name])))[:KINDS_MAX]
    if not shown:
        return None
    apart = [Spread.of([apart_ns(row) for row in kinds[name]]) for name in shown]
    moved = [Spread.of([row.transfer_ns for row in kinds[name]]) for name in shown]
    words = [_words(name, len(kinds[name]), *both) for name, *both in zip(shown, apart, moved, strict=True)]
    data = [
        _dots("ranks come apart by", "exposed_comm", apart, words, -0.14),
        _dots("then it takes (shortest execution)", "comm", moved, words, 0.14),
    ]
    some = f" The {KINDS_MAX} kinds with the widest of {len(kinds)}." if len(shown) < len(kinds) else ""
    caption = (
        "Median, and what nine in ten lie between, as the ranks' clocks tell. Where ranks come further apart than it"
        f" takes, the step waits for a rank, and not for the network.{_queued_words(kinds)}{some}"
    )
    axes = {
        "yaxis": axis(range=[len(shown) - 0.4, -0.6], showgrid=False, tickvals=list(range(len(shown))), ticktext=shown),
        "xaxis": decades("ms, logarithmic", [x for trace in data for x in trace["x"]]),
    }
    return Figure("matches", 130 + PX_PER_KIND * len(shown), data, layout(**axes, hovermode="closest"), caption)


def _queued_words(kinds: Mapping[str, Sequence[MatchRow]]) -> str:
    """Of those that no rank had begun to run when the last one came: nobody waited for it."""
    rows = [row for rows in kinds.values() for row in rows]
    queued = sum(row.last_arrival_at_ns is not None and row.last_arrival_at_ns < row.first_start_at_ns for row in rows)
    if not queued:
        return ""
    return f" Not so for {queued:,} of {counted(len(rows), 'collective')}: still queued when the last rank came."


def _kinds(result: Result) -> dict[str, list[MatchRow]]:
    """Of the typical steps; where these have none, all."""
    steps = {row.step for row in typical_steps(result.steps)[0]}
    rows = [row for row in result.matches if row.step in steps] or list(result.matches)
    several_reducers = several(result)
    found: defaultdict[str, list[MatchRow]] = defaultdict(list)
    for row in rows:
        found[_name(row, several_reducers)].append(row)
    return found


def _name(row: MatchRow, several_reducers: bool) -> str:
    """As plotly is given it."""
    if row.bucket is None:
        return f"{plain(op_name(row.op))[:NAME_MAX]} · {size(row.nbytes)}"
    reducer, _, index = row.bucket
    return named_bucket(reducer if several_reducers else None, index, row.nbytes)


def apart_ns(row: MatchRow) -> int:
    """Between the first and the last arrival, and where none can be compared, between the begins."""
    return row.last_start_at_ns - row.first_start_at_ns if row.skew_ns is None else row.skew_ns


def _words(name: str, count: int, apart: Spread, moved: Spread) -> str:
    told = (f"{duration(one.median_ns)} ({duration(one.low_ns)} – {duration(one.high_ns)})" for one in (apart, moved))
    return f"{name}, {counted(count, 'collective')}<br>ranks come apart by {next(told)}<br>then it takes {next(told)}"


def _dots(name: str, colour: str, spreads: Sequence[Spread], words: Sequence[str], beside: float) -> dict[str, Any]:
    lows, middles, highs = (
        ms(max(getattr(spread, f"{part}_ns"), LEAST_NS) for spread in spreads) for part in ("low", "median", "high")
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": middles,
        "y": [place + beside for place in range(len(spreads))],
        "hovertext": list(words),
        "hoverinfo": "text",
        "marker": {"color": COLOURS[colour], "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "thickness": 3,
            "width": 0,
            "color": COLOURS[colour],
            "array": [round(high - middle, 6) for high, middle in zip(highs, middles, strict=True)],
            "arrayminus": [round(middle - low, 6) for low, middle in zip(lows, middles, strict=True)],
        },
    }


# The critical path ----------------------------------------------------------------------------------------------------


PATH_BARS_MAX: Final = 24
LABEL_MAX: Final = 60


def path_figure(result: Result) -> Figure | None:
    """A bar for each rank, of the phases in which it held all up, and one for the transfers of each bucket or kind."""
    shares, several_reducers = path_shares(result), several(result)
    lengths: Counter[str] = Counter()
    for share in shares:
        lengths[label_of(share, several_reducers)] += share.ns
    longest = [label for label, _ in lengths.most_common(PATH_BARS_MAX)]
    pieces = [piece_of(share, several_reducers) for share in shares]
    shown = sorted((piece for piece in pieces if piece.label in longest), key=lambda one: longest.index(one.label))
    some = f" The {PATH_BARS_MAX} longest of {len(lengths)} bars." if len(lengths) > PATH_BARS_MAX else ""
    caption = f"Mean over the typical steps; all bars together are as long as a step.{some}"
    return stacked("path", shown, "ms per step", caption)


def label_of(share: PathShare, several_reducers: bool) -> str:
    if share.rank is not None:
        return f"rank {share.rank}"
    return shortened(f"transfer of {moved_name(share, several_reducers)}", LABEL_MAX)


def piece_of(share: PathShare, several_reducers: bool) -> Piece:
    label = label_of(share, several_reducers)
    name = "transfer" if share.rank is None else share.what
    colour = "exposed_comm" if share.rank is None else name if name in COLOURS else "other"
    words = f"{plain(label)}: {plain(name)} {duration(share.ns)}, {plain(percent(share.ratio))} of the path"
    return Piece(label, colour, plain(name), ms([share.ns])[0], words)
