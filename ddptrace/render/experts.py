"""All-to-alls for the terminal and the report: who sends how much to whom, by layer.

In: `exchanges` of a `Result`, as digests. Out: a section, a heat map and lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ddptrace.analysis.experts.digest import LayerDigest, layer_digests
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.figure import COLOURS, Figure, axis, layout, plain
from ddptrace.render.markup import label, section, table
from ddptrace.render.words import both_ends
from ddptrace.units import NOT_MEASURED, millis, size

ROWS_MAX: Final = 40
RANKS_MAX: Final = 64
MOST_LAYERS: Final = 5  # on the terminal
CLEAR: Final = "rgba(65,114,159,0)"
SUB: Final = (
    "What each layer's all-to-alls give the ranks in a step, as a router of tokens to experts decides. Cost: what the"
    " ranks wait on average, in the next all-to-all, for the one that got most."
)
HEADS: Final = (
    ("layer", "words"), ("phase", "words"), ("ranks", ""), ("mean", ""), ("most", ""), ("max / mean", ""),
    ("rank", ""), ("costs ms", ""),
)  # fmt: skip


def expert_section(result: Result, picture: str) -> str:
    digests = layer_digests(result)
    some = f" The {ROWS_MAX} most uneven of {len(digests):,}." if len(digests) > ROWS_MAX else ""
    rows = table(HEADS, map(_cells, digests[:ROWS_MAX])) if digests else ""
    return section("Who gets how much in all-to-alls", SUB + some, picture, rows) if digests else ""


def _cells(one: LayerDigest) -> list[str]:
    gets = one.received_nbytes
    return [
        label(one.layer),
        label(one.phase or NOT_MEASURED),
        f"{len(one.ranks):,}",
        size(round(sum(gets) / len(gets))),
        size(round(max(gets))),
        f"{one.imbalance_ratio:.2f}",
        NOT_MEASURED if one.largest_rank is None else f"{one.largest_rank}",
        NOT_MEASURED if one.cost_ns is None else millis(one.cost_ns),
    ]


def expert_figure(result: Result) -> Figure | None:
    """Bytes between each pair of ranks, of the most uneven layer; None where no all-to-all is known on all its
    ranks."""
    worst = next(iter(layer_digests(result)), None)
    if worst is None:
        return None
    shown = worst.ranks[:RANKS_MAX]
    names = [f"rank {rank}" for rank in shown]
    z = [[round(nbytes) for nbytes in row[:RANKS_MAX]] for row in worst.pairs[:RANKS_MAX]]
    data: dict[str, Any] = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": z,
        "colorscale": [[0, CLEAR], [1, COLOURS["backward"]]],
        "zmin": 0,
        "zmax": max(map(max, z)) or 1,
        "colorbar": {"title": {"text": "bytes"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y} to %{x}: %{z} bytes",
        "name": "",
    }
    axes = {
        "xaxis": axis("to", type="category", showgrid=False),
        "yaxis": axis("from", autorange="reversed", type="category", showgrid=False),
    }
    some = f" The first {RANKS_MAX} of {len(worst.ranks):,} ranks." if len(worst.ranks) > RANKS_MAX else ""
    caption = f"Layer {plain(worst.layer)}, {worst.phase or 'outside of phases'}: mean of the typical steps.{some}"
    return Figure("experts", 160 + 26 * len(shown), [data], layout(**axes), caption)


def expert_lines(result: Result) -> Iterator[str]:
    """Nothing where no all-to-all is known on all its ranks."""
    digests = layer_digests(result)
    if not digests:
        return
    some = f"the {MOST_LAYERS} most uneven of {len(digests)}, " if len(digests) > MOST_LAYERS else ""
    yield f"All-to-alls  ({some}bytes that a rank gets in a step)"
    yield f"  {'layer':<32} {'phase':<9} {'mean':>9} {'most':>9} {'max / mean':>11} {'rank':>5} {'costs ms':>9}"
    yield from map(_layer_line, digests[:MOST_LAYERS])


def _layer_line(digest: LayerDigest) -> str:
    gets = digest.received_nbytes
    sizes = f"{size(round(sum(gets) / len(gets))):>9} {size(round(max(gets))):>9}"
    cost = NOT_MEASURED if digest.cost_ns is None else millis(digest.cost_ns)
    layer = both_ends(printable(digest.layer), 32)
    largest = NOT_MEASURED if digest.largest_rank is None else digest.largest_rank
    uneven = f"{digest.imbalance_ratio:>11.2f} {largest:>5} {cost:>9}"
    return f"  {layer:<32} {digest.phase or NOT_MEASURED:<9} {sizes} {uneven}"
