"""The report's sections on what computing beside communication costs, and on what varies from step to step."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow
from ddptrace.render.device.kernels import kernel_name
from ddptrace.render.markup import folded, label, section, table
from ddptrace.units import duration, millis, percent

ROWS_MAX: Final = 20
ROWS_OPEN: Final = 8
RANKS_MAX: Final = 40
TAX: Final = (
    "The same operators or kernels, alone and beside communication, compared between steps at the same place in the"
    " step. Tax: how much longer those beside communication took, in all profiled steps of all ranks."
)
JITTER: Final = (
    "How long a rank's steps take and how much they vary, without the first step and those that ddptrace delayed. The"
    " last columns divide the variance, 100 % in all, among the phases without their waits, and waiting."
)
TAX_HEADS: Final = (
    ("name", "names"), ("ranks", ""), ("beside", ""), ("alone", ""), ("alone, median", ""), ("beside, median", ""),
    ("tax ms", ""),
)  # fmt: skip
PARTS: Final = ("data", "forward", "backward", "optimizer", "other", "waiting")
JITTER_HEADS: Final = (
    ("rank", ""), ("steps", ""), ("median ms", ""), ("p95 ms", ""), ("spread ms", ""), *((part, "") for part in PARTS),
)  # fmt: skip


def contention_section(result: Result) -> str:
    """Dearest first; what is faster beside communication costs nothing, and is left out."""
    by_name: defaultdict[str, list[ContentionRow]] = defaultdict(list)
    for row in result.contention:
        by_name[row.name].append(row)
    dear = [rows for rows in by_name.values() if tax_of(rows) > 0]
    dear.sort(key=lambda rows: (-tax_of(rows), rows[0].name))
    cells = [tax_cells(rows) for rows in dear[:ROWS_MAX]]
    return section("Computing beside communication", TAX, table(TAX_HEADS, cells)) if cells else ""


def tax_of(rows: list[ContentionRow]) -> int:
    return sum(row.tax_ns for row in rows)


def tax_cells(rows: list[ContentionRow]) -> list[str]:
    """One name, on all ranks."""
    return [
        f"<code>{label(kernel_name(rows[0].name))}</code>",
        str(len(rows)),
        f"{sum(row.beside for row in rows):,}",
        f"{sum(row.alone for row in rows):,}",
        duration(median(row.alone_ns for row in rows)),
        duration(median(row.beside_ns for row in rows)),
        millis(tax_of(rows)),
    ]


def jitter_section(result: Result, picture: str) -> str:
    """In the table, of many ranks those whose steps vary most."""
    ranks: defaultdict[int, dict[str, JitterRow]] = defaultdict(dict)
    for row in result.jitter:
        ranks[row.rank][row.part] = row
    whole = [rank for rank, parts in ranks.items() if "step" in parts]
    shown = sorted(whole, key=lambda rank: (-ranks[rank]["step"].spread_ns, rank))[:RANKS_MAX]
    cells = [jitter_cells(rank, ranks[rank]) for rank in (shown if len(shown) > ROWS_OPEN else sorted(shown))]
    return (
        section("What varies from step to step", JITTER, picture, folded(JITTER_HEADS, cells, ROWS_OPEN, "ranks"))
        if cells
        else ""
    )


def jitter_cells(rank: int, parts: dict[str, JitterRow]) -> list[str]:
    step = parts["step"]
    shares = [parts[part].share_ratio if part in parts else None for part in PARTS]
    return [
        str(rank),
        f"{step.steps:,}",
        millis(step.median_ns),
        millis(step.p95_ns),
        millis(step.spread_ns),
        *(label(percent(share)) for share in shares),
    ]
