"""The terminal's table of what NCCL itself says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.tables.nccl import NcclRow
from ddptrace.errors import printable
from ddptrace.render.words import cut
from ddptrace.units import NOT_MEASURED, millis, rate, size

MOST_ROWS: Final = 60


def nccl_lines(rows: Sequence[NcclRow], with_run: bool) -> Iterator[str]:
    """`with_run`: bandwidth of a run was asked for."""
    yield (
        f"{'function':<14} {'size':>8}  {'algorithm':<18} {'protocol':<8} {'channels':>8} {'chosen':>7} {'timed':>7}"
        f" {'mean ms':>8} {'busbw':>9}{'  in the run' * with_run}"
    )
    for row in rows[:MOST_ROWS]:
        yield _line(row, with_run)
    if len(rows) > MOST_ROWS:
        yield f"and {len(rows) - MOST_ROWS} more; --json has all"
    yield ""
    yield "chosen: lines of the logs; timed: collectives of all ranks, by NCCL Inspector, whatever their algorithm"
    if any(row.function in ("AllGather", "ReduceScatter") for row in rows):
        yield "size: as NCCL counts, of an AllGather and a ReduceScatter one rank's part"


def _line(row: NcclRow, with_run: bool) -> str:
    how = (
        f"{cut(printable(row.algorithm or NOT_MEASURED), 18):<18} {printable(row.protocol or NOT_MEASURED):<8}"
        f" {NOT_MEASURED if row.channels is None else row.channels:>8}"
    )
    counts = f"{row.chosen or NOT_MEASURED:>7} {row.timed or NOT_MEASURED:>7}"
    rates = f"{millis(row.mean_ns):>8} {rate(row.busbw_bytes_per_s):>9}"
    run = f"{rate(row.run_busbw_bytes_per_s):>12}" if with_run else ""
    return f"{cut(printable(row.function), 14):<14} {size(row.nbytes):>8}  {how} {counts} {rates}{run}"
