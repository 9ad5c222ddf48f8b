"""A picture of the critical path. As in figures.py: plain data for plotly.js, a bounded number of marks."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ddptrace.analysis.ranks.critical_path import PathShare, path_shares
from ddptrace.analysis.result import Result
from ddptrace.render.device.figures import Piece, stacked
from ddptrace.render.figures import COLOURS, Figure, ms, plain
from ddptrace.render.ranks.terminal import moved_name, several
from ddptrace.render.words import duration, percent, shortened

BARS_MAX: Final = 24
NAME_MAX: Final = 60


def path_figure(result: Result) -> Figure | None:
    """A bar for each rank, of the phases in which it held all up, and one for the transfers of each bucket or kind."""
    shares, several_reducers = path_shares(result), several(result)
    lengths: Counter[str] = Counter()
    for share in shares:
        lengths[label_of(share, several_reducers)] += share.ns
    longest = [label for label, _ in lengths.most_common(BARS_MAX)]
    pieces = [piece_of(share, several_reducers) for share in shares]
    shown = sorted((piece for piece in pieces if piece.label in longest), key=lambda one: longest.index(one.label))
    some = f" The {BARS_MAX} longest of {len(lengths)} bars." if len(lengths) > BARS_MAX else ""
    caption = f"Mean over the typical steps; all bars together are as long as a step.{some}"
    return stacked("path", shown, "ms per step", caption)


def label_of(share: PathShare, several_reducers: bool) -> str:
    if share.rank is not None:
        return f"rank {share.rank}"
    return shortened(f"transfer of {moved_name(share, several_reducers)}", NAME_MAX)


def piece_of(share: PathShare, several_reducers: bool) -> Piece:
    label = label_of(share, several_reducers)
    name = "transfer" if share.rank is None else share.what
    colour = "exposed_comm" if share.rank is None else name if name in COLOURS else "other"
    words = f"{plain(label)}: {plain(name)} {duration(share.ns)}, {plain(percent(share.ratio))} of the path"
    return Piece(label, colour, plain(name), ms([share.ns])[0], words)
