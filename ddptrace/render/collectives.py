"""Collectives by message size for the report, and the terminal's table of what NCCL itself says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ddptrace.analysis.collectives.transfers import OFF_MAX_RATIO, SIZES_MIN, SPAN_MIN, SizeTime, Transfers, transfers
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import NcclRow
from ddptrace.errors import printable
from ddptrace.render.figure import Figure, decades, layout, ms, plain
from ddptrace.render.markup import label, section, table, text
from ddptrace.render.words import cut, op_name
from ddptrace.units import NOT_MEASURED, counted, duration, millis, percent, rate, size, size_range

TITLE: Final = "Bandwidth over message size"
SERIES_MAX: Final = 8
SIZES_MAX: Final = 60
LINE_POINTS: Final = 40
MOST_NCCL_ROWS: Final = 60
PALETTE: Final = ("#4a80b3", "#e4683a", "#3f8f8b", "#9a6fb8", "#d9b44a", "#7a9e59", "#868e99", "#b5485d")
MATCHED: Final = (
    "How long a collective takes to move its bytes once all ranks have arrived: its shortest execution over the ranks,"
    " which waits for no late rank. The line is latency + bytes / bandwidth: each additional bucket pays the latency"
    " again, whatever its size."
)
ALONE: Final = (
    "How long executions take, on the ranks that have a file here. They include waiting for other ranks, so latency"
    " and bandwidth are unknown."
)
HEADS: Final = (
    ("op", ""), ("group", "words"), ("ranks", ""), ("sizes", ""), ("collectives", ""), ("latency", ""),
    ("bandwidth", ""), ("busbw", ""), ("line off by", ""), ("evidence", "words"),
)  # fmt: skip


def bandwidth_section(result: Result, picture: str) -> str:
    found = transfers(result)
    if not found:
        return ""
    some = f" The {SERIES_MAX} that moved most bytes of {len(found)}." if len(found) > SERIES_MAX else ""
    told = "".join(f"<p>{text(words)}</p>" for words in map(line_words, found[:SERIES_MAX]) if words)
    cells = map(transfer_cells, found[:SERIES_MAX])
    return section(TITLE, (ALONE if found[0].alone else MATCHED) + some, told, picture, table(HEADS, cells))


def line_words(one: Transfers) -> str:
    """As in "all_reduce on 8 ranks: 20.2 µs until it moves, then 21.8 GB/s"; nothing where a part of it is not seen."""
    line = one.line
    if line is None or not line.start_is_seen or not line.rate_is_seen:
        return ""
    half = size(round(line.start_ns / line.ns_per_byte))
    group = f" in group {one.group}" if one.group else ""
    return (
        f"{op_name(one.op)} on {one.ranks} ranks{group}: {duration(line.start_ns)} latency, then"
        f" {rate(line.bytes_per_s)}. Below {half} a message takes longer to start than to move."
    )


def transfer_cells(one: Transfers) -> list[str]:
    line = one.line
    start = duration(line.start_ns) if line is not None and line.start_is_seen else NOT_MEASURED
    speed = rate(line.bytes_per_s if line is not None and line.rate_is_seen else None)
    return [
        label(op_name(one.op)),
        label(one.group or "-"),
        str(one.ranks),
        size_range(one.sizes[0].nbytes, one.sizes[-1].nbytes),
        f"{sum(at.count for at in one.sizes):,}",
        start,
        speed,
        rate(one.bus_bytes_per_s),
        label(percent(line.off_ratio) if line else NOT_MEASURED),
        why_words(one),
    ]


def why_words(one: Transfers) -> str:
    """What the row rests on, or why nothing can be read from it."""
    if one.alone:
        return "measured, waiting included"
    if not one.measured:
        return "begins inferred: no line"
    if one.line is not None:
        return "measured"
    if len(one.sizes) < SIZES_MIN:
        return f"measured; {counted(len(one.sizes), 'size')}, a line takes {SIZES_MIN}"
    if one.sizes[-1].nbytes < SPAN_MIN * one.sizes[0].nbytes:
        return f"measured; sizes less than {SPAN_MIN} times apart: no line"
    return f"measured; a line would be off by more than {percent(OFF_MAX_RATIO)}"


def bandwidth_figure(result: Result) -> Figure | None:
    """Both axes logarithmic; a colour for each op and group."""
    found = transfers(result)[:SERIES_MAX]
    if not found:
        return None
    data = [trace for one, colour in zip(found, PALETTE, strict=False) for trace in series(one, colour)]
    axes = {
        "xaxis": decades("bytes", [x for trace in data for x in trace["x"]], tickformat="~s"),
        "yaxis": decades("ms", [y for trace in data for y in trace["y"]]),
    }
    caption = "Medians, and what eight in ten lie between." + (
        f" Of an op with more sizes the {SIZES_MAX} most frequent."
        if any(len(one.sizes) > SIZES_MAX for one in found)
        else ""
    )
    sheet = layout(**axes, hovermode="closest", showlegend=True)
    return Figure("bandwidth", 400, data, sheet, caption)


def series(one: Transfers, colour: str) -> Iterator[dict[str, Any]]:
    name = plain(op_name(one.op)) + (f" · group {plain(one.group)}" if one.group else "") + f" · {one.ranks} ranks"
    most = sorted(one.sizes, key=lambda at: -at.count)[:SIZES_MAX]
    sizes = sorted(most, key=lambda at: at.nbytes)
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "x": [at.nbytes for at in sizes],
        "y": ms(at.median_ns for at in sizes),
        "error_y": ends(sizes, colour),
        "marker": {"color": colour, "size": 8, "symbol": "circle" if one.measured else "circle-open"},
        "hovertext": [f"{name}<br>{point_words(at)}" for at in sizes],
        "hoverinfo": "text",
    }
    if one.line is not None:
        first, last = sizes[0].nbytes, sizes[-1].nbytes
        xs = [first * (last / first) ** (at / (LINE_POINTS - 1)) for at in range(LINE_POINTS)]
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "legendgroup": name,
            "showlegend": False,
            "x": [round(x) for x in xs],
            "y": ms(one.line.start_ns + one.line.ns_per_byte * x for x in xs),
            "line": {"color": colour, "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }


def ends(sizes: Sequence[SizeTime], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1.3,
        "width": 3,
        "color": colour,
        "array": ms(at.high_ns - at.median_ns for at in sizes),
        "arrayminus": ms(at.median_ns - at.low_ns for at in sizes),
    }


def point_words(at: SizeTime) -> str:
    return f"{size(at.nbytes)}: {duration(at.median_ns)}, median of {at.count:,}"


NCCL_TITLE: Final = "How NCCL carried out collectives"
MOST_IN_SUMMARY: Final = 8
MOST_IN_REPORT: Final = 40
SUB: Final = (
    "As NCCL's own logs (chosen: lines that say so) and NCCL Inspector (timed: collectives of all ranks, whatever their"
    " algorithm) tell. Size: as NCCL counts, of an AllGather and a ReduceScatter one rank's part."
)
NCCL_HEADS: Final = (
    ("function", "words"), ("size", ""), ("algorithm", "words"), ("protocol", "words"), ("channels", ""),
    ("chosen", ""), ("timed", ""), ("mean ms", ""), ("busbw", ""), ("in the run", ""),
)  # fmt: skip


def nccl_of_run(rows: Sequence[NcclRow]) -> Iterator[str]:
    """What the summary of a run says of the collectives that took most time, else of those that are most frequent."""
    if rows:
        yield NCCL_TITLE
        for line in nccl_lines(costliest(rows), with_run=True, most=MOST_IN_SUMMARY):
            yield f"  {line}"


def nccl_section(rows: Sequence[NcclRow]) -> str:
    """The report's table of the collectives that took most time, else of those that are most frequent."""
    if not rows:
        return ""
    some = f" The first {MOST_IN_REPORT} of {len(rows):,}." if len(rows) > MOST_IN_REPORT else ""
    return section(NCCL_TITLE, SUB + some, table(NCCL_HEADS, map(_cells, costliest(rows)[:MOST_IN_REPORT])))


def _cells(row: NcclRow) -> list[str]:
    return [
        label(row.function),
        size(row.nbytes),
        label(row.algorithm or NOT_MEASURED),
        label(row.protocol or NOT_MEASURED),
        NOT_MEASURED if row.channels is None else f"{row.channels}",
        f"{row.chosen or NOT_MEASURED}",
        f"{row.timed or NOT_MEASURED}",
        millis(row.mean_ns),
        rate(row.busbw_bytes_per_s),
        rate(row.run_busbw_bytes_per_s),
    ]


def costliest(rows: Sequence[NcclRow]) -> list[NcclRow]:
    """Put those first that took most time, else those that are most frequent."""
    return sorted(rows, key=lambda row: (-row.timed * (row.mean_ns or 0), -row.chosen))


def nccl_lines(rows: Sequence[NcclRow], with_run: bool, most: int = MOST_NCCL_ROWS) -> Iterator[str]:
    """`with_run`: bandwidth of a run was asked for. `most`: rows to show."""
    yield (
        f"{'function':<14} {'size':>8}  {'algorithm':<18} {'protocol':<8} {'channels':>8} {'chosen':>7} {'timed':>7}"
        f" {'mean ms':>8} {'busbw':>9}{'  in the run' * with_run}"
    )
    for row in rows[:most]:
        yield _nccl_line(row, with_run)
    if len(rows) > most:
        yield f"and {len(rows) - most} more; --json has all"
    yield ""
    yield "chosen: lines of the logs; timed: collectives of all ranks, by NCCL Inspector, whatever their algorithm"
    if any(row.function in ("AllGather", "ReduceScatter") for row in rows):
        yield "size: as NCCL counts, of an AllGather and a ReduceScatter one rank's part"


def _nccl_line(row: NcclRow, with_run: bool) -> str:
    how = (
        f"{cut(printable(row.algorithm or NOT_MEASURED), 18):<18} {printable(row.protocol or NOT_MEASURED):<8}"
        f" {NOT_MEASURED if row.channels is None else row.channels:>8}"
    )
    counts = f"{row.chosen or NOT_MEASURED:>7} {row.timed or NOT_MEASURED:>7}"
    rates = f"{millis(row.mean_ns):>8} {rate(row.busbw_bytes_per_s):>9}"
    run = f"{rate(row.run_busbw_bytes_per_s):>12}" if with_run else ""
    return f"{cut(printable(row.function), 14):<14} {size(row.nbytes):>8}  {how} {counts} {rates}{run}"
