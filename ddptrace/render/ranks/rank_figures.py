"""Pictures of the ranks together, as plain data for plotly.js: how far apart they come to the same collective and how
long it then takes, the critical path, and heat maps with a cell for each rank and bucket or phase.

If a heat map has more ranks than rows, neighbouring ranks are drawn as one, by their mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from ddptrace.analysis.ranks.digest import PathShare, path_shares
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketKey, measured_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, MatchRow
from ddptrace.render.device.device_figures import Piece, stacked
from ddptrace.render.figure import COLOURS, Figure, axis, decades, layout, ms, plain
from ddptrace.render.ranks.pages import moved_name, several
from ddptrace.render.words import named_bucket, op_name, shortened
from ddptrace.units import counted, duration, percent, size

KINDS_MAX: Final = 20
PX_PER_KIND: Final = 26
LEAST_NS: Final = 100
"""Drawn at the left edge of an axis that has no zero."""
NAME_MAX: Final = 48
PATH_BARS_MAX: Final = 24
LABEL_MAX: Final = 60
ROWS_MAX: Final = 256
COLUMNS_MAX: Final = 120
ROW_MAX_PX, HEIGHT_MAX_PX = 30, 520
FEW_ROWS: Final = 4
CLEAR: Final = "rgba(228,104,58,0)"
PARTS: Final = (*LOCAL_PHASES, "waiting")
Cells = dict[int, list[float | None]]
"""By rank, a value in ns for each column; None where nothing is known."""


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
        _dots("arrivals of the ranks, first to last", "exposed_comm", apart, words, -0.14),
        _dots("transfer (shortest execution)", "comm", moved, words, 0.14),
    ]
    some = f" The {KINDS_MAX} kinds with the widest of {len(kinds)}." if len(shown) < len(kinds) else ""
    caption = (
        "Median and the range of nine in ten, by the ranks' clocks. Where the arrivals of the ranks lie further apart"
        f" than the transfer takes, the step waits for a rank, not for the network.{_queued_words(kinds)}{some}"
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
    of = counted(len(rows), "collective")
    return f" {queued:,} of {of} were still queued when the last rank arrived: nobody waited for it."


def _kinds(result: Result) -> dict[str, list[MatchRow]]:
    """Of the typical steps; where these have none, all."""
    steps = {row.step for row in measured_steps(result.steps)[0]}
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
    return f"{name}, {counted(count, 'collective')}<br>arrivals {next(told)} apart<br>transfer {next(told)}"


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


def bucket_heat(result: Result) -> Figure | None:
    """Exposed time of each bucket on each rank, mean over the rank's typical steps."""
    steps, _ = measured_steps(result.steps)
    counts: dict[int, int] = defaultdict(int)
    for row in steps:
        counts[row.rank] += 1
    sums = _exposed(result, {(row.rank, row.step) for row in steps})
    keys, some = _dearest(sums)
    if len(counts) < 2 or len(keys) < 2:
        return None
    names = _bucket_names(keys)
    cells: Cells = {rank: [sums[key].get(rank, 0) / counts[rank] for key in keys] for rank in sorted(counts)}
    caption = f"Exposed time charged to each bucket on each rank, mean over its typical steps.{some}"
    return heat("buckets-by-rank", cells, names, "bucket", caption)


def _exposed(result: Result, wanted: set[tuple[int, int]]) -> dict[BucketKey, dict[int, int]]:
    """By bucket and rank, all of it in these steps."""
    sums: dict[BucketKey, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in result.buckets:
        if row.step is not None and row.exposed_charged_ns is not None and (row.rank, row.step) in wanted:
            sums[row.reducer, row.layout, row.index][row.rank] += row.exposed_charged_ns
    return sums


def _dearest(sums: dict[BucketKey, dict[int, int]]) -> tuple[list[BucketKey], str]:
    """In the order of their indices, and what to say where some are left out."""
    dearest = sorted(sums, key=lambda key: (-sum(sums[key].values()), key))[:COLUMNS_MAX]
    some = f" The {COLUMNS_MAX} most exposed of {len(sums):,} buckets." if len(dearest) < len(sums) else ""
    return sorted(dearest), some


def _bucket_names(keys: Sequence[BucketKey]) -> list[str]:
    """Indices, told apart by what else differs."""
    apart = [place for place in (0, 1) if len({key[place] for key in keys}) > 1]
    return [" · ".join((*(f"{'rl'[place]}{key[place]}" for place in apart), str(key[2]))) for key in keys]


def jitter_heat(result: Result) -> Figure | None:
    """How much each phase of each rank varies from step to step."""
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in result.jitter:
        found[row.rank][row.part] = row.spread_ns
    if not found:
        return None
    cells: Cells = {rank: [found[rank].get(part) for part in PARTS] for rank in sorted(found)}
    caption = (
        "How much the steps of a rank vary: the spread of each phase without its waits, and of the waits (1.48 times"
        " the median deviation from the median)."
    )
    return heat("jitter", cells, PARTS, "phase", caption)


def heat(key: str, cells: Cells, names: Sequence[str], what: str, caption: str) -> Figure:
    """Ranks from top to bottom, the first on top."""
    ranks = sorted(cells)
    width = -(-len(ranks) // ROWS_MAX)
    groups = [ranks[at : at + width] for at in range(0, len(ranks), width)]
    together = f" Each row is the mean of {counted(width, 'neighbouring rank')}." if width > 1 else ""
    z = [_mean_row([cells[rank] for rank in group]) for group in groups]
    most = max((value for row in z for value in row if value is not None), default=0)
    data = {
        "type": "heatmap",
        "x": list(names),
        "y": [_rank_name(group) for group in groups],
        "z": z,
        "colorscale": [[0, CLEAR], [1, COLOURS["exposed_comm"]]],
        "zmin": 0,
        "zmax": most or 1,
        "hoverongaps": False,
        "colorbar": _colour_bar(most, len(groups)),
        "hovertemplate": f"%{{y}}, {what} %{{x}}: %{{z}} ms",
        "name": "",
        "xgap": 1 if len(names) <= 60 else 0,
        "ygap": 1 if len(groups) <= 32 else 0,
    }
    axes = {
        "xaxis": axis(what, type="category", showgrid=False),
        "yaxis": axis(autorange="reversed", type="category", showgrid=False),
    }
    height_px = min(110 + ROW_MAX_PX * len(groups), HEIGHT_MAX_PX)
    sheet = layout(**axes) | {"margin": {"l": 8, "r": 12, "t": 30, "b": 8}}
    return Figure(key, height_px, [data], sheet, caption + together)


def _colour_bar(most_ms: float, rows: int) -> dict[str, Any]:
    """As high as the rows: beside a few there is room for its two ends only."""
    ends = {"tickvals": [0, most_ms], "ticktext": ["0", duration(most_ms * 1e6)]}
    return {"thickness": 12, "outlinewidth": 0} | (ends if rows <= FEW_ROWS else {"nticks": 6, "ticksuffix": " ms"})


def _rank_name(group: Sequence[int]) -> str:
    return f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}"


def _mean_row(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    means: list[float | None] = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if value is not None]
        means.append(round(ms([sum(known) / len(known)])[0], 4) if known else None)
    return means
