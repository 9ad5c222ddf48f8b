"""All-to-alls whose every byte is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import ExchangeRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.traffic.rows import compared


def exchanges(
    turn: int, sent: Sequence[tuple[int, ...]], launches: Sequence[int], step: int = 1, layer: str = "moe"
) -> list[ExchangeRow]:
    """One all-to-all of ranks that send these bytes to each other, launched at these instants."""
    ranks = tuple(range(len(sent)))
    rows = {
        rank: ExchangeRow(rank, step, turn, "all_to_all_single", "0", ranks, turn, "forward", layer, bytes_, at)
        for rank, bytes_, at in zip(ranks, sent, launches, strict=True)
    }
    return [compared(row, rows, on_device=False) for row in rows.values()]


def with_exchange(result: Result) -> Result:
    """With one all-to-all, of which rank 1 gets three times as much as rank 0."""
    return replace(result, exchanges=Table(ExchangeRow, exchanges(0, [(100, 300), (100, 300)], [0, 0])))
