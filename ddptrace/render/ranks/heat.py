"""Heat maps of the report: a cell for each rank and bucket or phase, so that many ranks are one picture. As in
figures.py: plain data for plotly.js; of more ranks than rows neighbours are drawn as one, by their mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketKey, typical_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.render.figures import COLOURS, Figure, axis, layout, ms
from ddptrace.units import counted

ROWS_MAX: Final = 256
COLUMNS_MAX: Final = 120
ROW_MAX_PX, HEIGHT_MAX_PX = 30, 520
CLEAR: Final = "rgba(228,104,58,0)"
PARTS: Final = (*LOCAL_PHASES, "waiting")
Cells = dict[int, list[float | None]]
"""By rank, a value in ns for each column; None where nothing is known."""


def bucket_heat(result: Result) -> Figure | None:
    """Exposed time of each bucket on each rank, mean over the rank's typical steps."""
    steps, _ = typical_steps(result.steps)
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
        "How far the steps of a rank lie from each other: spread of each phase without its waits, and of the waits"
        " (1.48 times the median deviation from the median)."
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
        "type": "heatmap", "x": list(names), "y": [_rank_name(group) for group in groups], "z": z,
        "colorscale": [[0, CLEAR], [1, COLOURS["exposed_comm"]]], "zmin": 0, "zmax": most or 1, "hoverongaps": False,
        "colorbar": {"title": {"text": "ms"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}, {what} %{{x}}: %{{z}} ms", "name": "", "xgap": 1 if len(names) <= 60 else 0,
        "ygap": 1 if len(groups) <= 32 else 0,
    }  # fmt: skip
    axes = {
        "xaxis": axis(what, type="category", showgrid=False),
        "yaxis": axis(autorange="reversed", type="category", showgrid=False),
    }
    height_px = min(110 + ROW_MAX_PX * len(groups), HEIGHT_MAX_PX)
    sheet = layout(**axes) | {"margin": {"l": 8, "r": 12, "t": 30, "b": 8}}
    return Figure(key, height_px, [data], sheet, caption + together)


def _rank_name(group: Sequence[int]) -> str:
    return f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}"


def _mean_row(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    means: list[float | None] = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if value is not None]
        means.append(round(ms([sum(known) / len(known)])[0], 4) if known else None)
    return means
