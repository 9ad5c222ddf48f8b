"""HTA's numbers beside ours in plain text, at most 96 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.hta.compare import HtaReport, HtaTable
from ddptrace.analysis.hta.rules import NO_FIGURES, Explained, Figures, Rule
from ddptrace.errors import printable
from ddptrace.units import NOT_MEASURED, counted

WIDTH: Final = 96
MOST_RANKS: Final = 8
MOST_ROWS: Final = 8
WIDEST_CELL: Final = 30

RULES: Final = {
    Rule.ROUNDING: "HTA rounds the times of a trace in ns to whole µs, begins up and ends down",
    Rule.LAUNCHED: "HTA leaves out work whose launch is not in the file",
    Rule.STEPS: "HTA leaves out what the last profiler step launches",
    Rule.NAMES: "HTA tells communication, compute and copies apart by other name patterns than ddptrace",
    Rule.STRAYS: "HTA counts every event with a stream as device work, also waits and operators of the host",
    Rule.FLOATS: "HTA adds up instants as float64, which loses µs if the traces were recorded days apart",
}
FIGURES: Final = (
    ("overlap %", "overlap_pctg"),
    ("idle ms", "idle_ns"),
    ("compute ms", "compute_ns"),
    ("other busy ms", "non_compute_ns"),
    ("first to last", "kernel_ns"),
)
NOTES: Final = {
    "gpu_kernel_breakdown by type": "In µs, over all ranks together. Ours: ranks.all and ranks.with_launch.",
    "gpu_kernel_breakdown by kernel": "Sums of durations of the kernels that take most. Ours: table scopes.",
    "idle_time_breakdown": "In µs, per stream, by the gap before each kernel. Ours: launches.host_idle_ns, of the whole"
    " device: a stream that waits while another works is not idle.",
    "potential_stragglers": "By one kind of communication kernel. Ours: table matches, all of them.",
    "cuda_kernel_launch_stats": "Delays count from the end of the launching call. Ours: launches.delay_p50_ns, from its"
    " begin.",
    "queue_length_summary": "Work launched and not yet over, per stream. Ours: launches.late counts the empty queues.",
    "memory_bw_summary": "In GB/s, of copies and fills; ddptrace does not measure it.",
    "gpu_user_annotation_breakdown": "By ranges on the device. Ours: table scopes, by where the host launched it.",
}


def hta_text(report: HtaReport) -> str:
    """The whole comparison, its lines ending in a newline."""
    sections = [
        [f"HTA {report.version} beside ddptrace · {counted(len(report.ranks), 'rank')}"],
        list(_figure_lines(report.ranks)),
        list(_why_lines(report.ranks)),
        list(_trouble_lines(report)),
        *(list(_table_lines(table)) for table in report.tables),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _figure_lines(ranks: Sequence[Explained]) -> Iterator[str]:
    ranks = [explained for explained in ranks if not explained.hta == explained.ours == NO_FIGURES]
    if not ranks:
        return
    yield f"{'rank':<6} {'':<14} {'HTA':>12} {'ours by':>12} {'ours':>12}  why they differ"
    yield f"{'':<6} {'':<14} {'':>12} {'its rules':>12} {'all work':>12}"
    for one in ranks[:MOST_RANKS]:
        for place, (label, name) in enumerate(FIGURES):
            columns = (_figure(figures, name) for figures in (one.hta, one.under_its_rules, one.ours))
            head = f"{one.rank if not place else '':<6} {label:<14}"
            yield f"{head} {' '.join(f'{column:>12}' for column in columns)}  {'' if place else _why(one)}".rstrip()
    if len(ranks) > MOST_RANKS:
        yield f"… and {counted(len(ranks) - MOST_RANKS, 'rank')} more: --json has all of them"


def _figure(figures: Figures | None, name: str) -> str:
    value = getattr(figures, name, None)
    if value is None:
        return NOT_MEASURED
    return f"{value:.2f}" if name == "overlap_pctg" else f"{value / 1e6:,.3f}"


def _why(explained: Explained) -> str:
    if explained.hta is None:
        return "HTA failed"
    if explained.why is None:
        return "unexplained"
    return ", ".join(applied.rule for applied in explained.why) or "equal"


def _why_lines(ranks: Sequence[Explained]) -> Iterator[str]:
    """Each rule that was at work, proven: with it our numbers are HTA's, and without it they are not."""
    events = {rule: sum(a.events for one in ranks for a in one.why or () if a.rule == rule) for rule in Rule}
    for rule, count in events.items():
        if count:
            yield from _wrapped(f"{rule + ':':<9} {RULES[rule]} ({counted(count, 'event')}).")
    for explained in ranks:
        if explained.hta is not None and explained.why is None:
            yield from _wrapped(f"unexplained on rank {explained.rank}: none of the rules known gives HTA's numbers.")


def _trouble_lines(report: HtaReport) -> Iterator[str]:
    for message in dict.fromkeys(failure.message for failure in report.failures):
        ranks = [failure.rank for failure in report.failures if failure.message == message]
        yield from _wrapped(f"Not available from HTA for {_listed(ranks)}: {printable(message)}.")
    if report.lost:
        told = 'HTA finds a rank by itself only if the file has "rank": with a space after it, once per rank'
        yield from _wrapped(f"{told}; ddptrace gave it the files of {_listed(report.lost)}.")


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_RANKS])) + (" …" if len(ranks) > MOST_RANKS else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _table_lines(table: HtaTable) -> Iterator[str]:
    if table.why_not is not None:
        yield from _wrapped(f"HTA {table.name}: not available: {printable(table.why_not)}")
        return
    yield f"HTA {table.name}"
    yield from _wrapped(NOTES[table.name])
    lines = [tuple(map(_heading, table.columns)), *(tuple(map(_cell, row)) for row in table.rows[:MOST_ROWS])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        yield _shortened("  " + "  ".join(padded).rstrip(), WIDTH)
    if len(table.rows) > MOST_ROWS:
        yield f"  … and {counted(len(table.rows) - MOST_ROWS, 'row')} more: --json has all of them"


def _heading(column: str) -> str:
    """HTA's, less what its other columns say too."""
    return column.removeprefix("queue_length ").removeprefix("memory_bw_gbps ")


def _cell(value: object) -> str:
    if value is None:
        return NOT_MEASURED
    text = f"{value:,.2f}" if isinstance(value, float) else printable(str(value))
    return _shortened(text, WIDEST_CELL)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
