"""The report's tables of collectives and launches, as HTML: every name is escaped where it enters."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.collectives.digest import CollectiveDigest, collectives
from ddptrace.analysis.device.digest import LaunchDigest, launches
from ddptrace.analysis.result import Result
from ddptrace.render.markup import folded, label, text
from ddptrace.render.words import IDENTIFIED, op_name, origin_words, through_words
from ddptrace.units import calls_words, duration, millis, percent, rate, size_range

ROWS_MAX: Final = 40
ROWS_OPEN: Final = 10
COLLECTIVES: Final = (
    "Calls and exposed time per {per}. Bandwidth as nccl-tests define it: bytes over time, and times the op's factor."
)
ORIGINS: Final = " Below each: what it is for, and the modules and lines that it comes from."
LAUNCHES: Final = (
    "The host puts work into the device's queue. While it is ahead, work waits there (the delay from launch to start);"
    " when a launch comes too late, its stream has run dry. Idle for the host: nothing ran and nothing waited in the"
    " queue, so neither faster kernels nor a faster network would have helped. Means per step."
)

COLLECTIVE_HEADS: Final = (
    ("op", ""), ("group", "words"), ("ranks", ""), ("size", ""), ("calls", ""), ("mean ms", ""), ("exposed ms", ""),
    ("hidden", ""), ("algbw", ""), ("busbw", ""), ("evidence, identified by", "words"),
)  # fmt: skip
LAUNCH_HEADS: Final = tuple(
    (title, "")
    for title in (
        "rank",
        "launches",
        "delay p50",
        "p90",
        "max",
        "too late",
        "idle ms",
        "for the host ms",
        "of step",
        "launch-bound",
    )
)


def collective_table(result: Result) -> str:
    found = collectives(result)
    kinds = found.kinds[:ROWS_MAX]
    rows, notes = list(map(collective_cells, kinds)), list(map(origin_note, kinds))
    return folded(COLLECTIVE_HEADS, rows, ROWS_OPEN, "kinds", notes) if kinds else ""


def collective_sub(result: Result) -> str:
    found = collectives(result)
    said = COLLECTIVES.format(per="rank and step" if found.per == "step" else found.per)
    said += ORIGINS if any(map(origin_note, found.kinds)) else ""
    return said + (f" The {ROWS_MAX} most exposed of {len(found.kinds)} kinds." if len(found.kinds) > ROWS_MAX else "")


def collective_cells(kind: CollectiveDigest) -> list[str]:
    return [
        label(op_name(kind.op)),
        label(kind.group or "-"),
        str(kind.group_size or "-"),
        size_range(kind.nbytes_min, kind.nbytes_max),
        calls_words(kind.calls),
        millis(kind.mean_ns),
        millis(kind.exposed_ns),
        label(percent(kind.hidden_ratio)),
        rate(kind.algbw_bytes_per_s),
        rate(kind.busbw_bytes_per_s),
        label(f"{kind.evidence or 'not measured'}, {IDENTIFIED[kind.identity]}"),
    ]


def origin_note(kind: CollectiveDigest) -> str:
    """Nothing where nobody recorded where it comes from."""
    known = kind.origin or kind.sites or kind.modules
    return text(" · ".join(filter(None, (origin_words(kind), through_words(kind))))) if known else ""


def launch_table(result: Result) -> str:
    """Of many ranks those whose device waited longest."""
    known = sorted(launches(result), key=lambda one: (-one.host_idle_ns, one.rank))[:ROWS_MAX]
    shown = known if len(known) > ROWS_OPEN else sorted(known, key=lambda one: one.rank)
    return folded(LAUNCH_HEADS, list(map(launch_cells, shown)), ROWS_OPEN, "ranks") if known else ""


def launch_cells(rank: LaunchDigest) -> list[str]:
    return [
        str(rank.rank),
        calls_words(rank.launched),
        duration(rank.delay_p50_ns),
        duration(rank.delay_p90_ns),
        duration(rank.delay_max_ns),
        label(percent(rank.late_ratio)),
        millis(rank.idle_ns),
        millis(rank.host_idle_ns),
        label(percent(rank.host_idle_ns / rank.window_ns if rank.window_ns else None)),
        f"{rank.bound_steps:,} of {rank.steps:,}",
    ]
