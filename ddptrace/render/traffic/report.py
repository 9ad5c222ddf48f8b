"""The report's section on traffic, as HTML: every name is escaped where it enters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.traffic.digest import KindDigest, TrafficReport, traffic_report
from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.analysis.traffic.peers import RootDigest
from ddptrace.analysis.traffic.units import UnitTraffic
from ddptrace.render.markup import Heads, folded, label, section, text
from ddptrace.render.traffic.words import (
    counted_words,
    gradient_figures,
    message_figures,
    rank_words,
    root_figures,
    sent_words,
    steps_words,
    uncounted_words,
    unit_figures,
    varying_words,
    why_words,
)
from ddptrace.render.words import op_name
from ddptrace.units import NOT_MEASURED, calls_words, size, size_range

ROWS_MAX: Final = 40
ROWS_OPEN: Final = 10

KIND_HEADS: Final = (
    ("op", ""), ("group", "words"), ("ranks", ""), ("origin", "words"), ("dtype", "words"), ("calls", ""), ("in", ""),
    ("out", ""), ("sent", ""), ("in one step", ""),
)  # fmt: skip
GRADIENT_HEADS: Final = (
    ("reducer", "words"), ("parameters", ""), ("backwards", ""), ("synchronised", ""), ("expected", ""), ("seen", ""),
    ("of it", ""), ("why", "words"),
)  # fmt: skip
UNIT_HEADS: Final = (
    ("unit", "words"), ("role", "words"), ("dimension", "words"), ("calls", ""), ("bytes", ""), ("sent", ""),
)  # fmt: skip
MESSAGE_HEADS: Final = (("from → to", "words"), ("messages", ""), ("sent", ""), ("received", ""))
ROOT_HEADS: Final = (("op", ""), ("group", "words"), ("root", ""), ("calls", ""), ("sent", ""))
RPC_HEADS: Final = (
    ("caller", "words"), ("callee", "words"), ("op", "words"), ("steps", ""), ("calls", ""), ("out", ""), ("back", ""),
    ("gradients out", ""), ("gradients back", ""), ("in one step", ""),
)  # fmt: skip


def traffic_section(result: Result) -> str:
    """Nothing where nothing was sent."""
    report = traffic_report(result)
    return section(
        "Traffic",
        sub_words(report) if report.kinds else "Bytes per step of the caller, by pair of workers.",
        shown(KIND_HEADS, map(kind_cells, report.kinds[:ROWS_MAX]), "kinds"),
        shown(GRADIENT_HEADS, map(gradient_cells, report.gradients[:ROWS_MAX]), "reducers"),
        shown(UNIT_HEADS, map(unit_cells, report.units[:ROWS_MAX]), "units"),
        shown(MESSAGE_HEADS, map(message_figures, report.messages[:ROWS_MAX]), "pairs"),
        shown(ROOT_HEADS, map(root_cells, report.roots[:ROWS_MAX]), "roots"),
        shown(RPC_HEADS, map(rpc_cells, report.rpcs[:ROWS_MAX]), "pairs"),
    )


def shown(heads: Heads, rows: Iterable[Sequence[str]], rest: str) -> str:
    """Nothing where it has no rows."""
    cells = list(rows)
    return folded(heads, cells, ROWS_OPEN, rest) if cells else ""


def sub_words(report: TrafficReport) -> str:
    what = f"Bytes per rank and step ({counted_words(report)})."
    told = what, rank_words(report), uncounted_words(report), varying_words(report.kinds), sent_words(report)
    return " ".join(filter(None, told))


def kind_cells(kind: KindDigest) -> list[str]:
    names = label(op_name(kind.op)), label(kind.group or "-"), str(kind.group_size or "-")
    return [
        *names,
        label(kind.origin or "-"),
        label(kind.dtype or "-"),
        calls_words(kind.calls),
        size(kind.nbytes_in),
        size(kind.nbytes_out or None),
        size(kind.sent_nbytes),
        size_range(kind.nbytes_min, kind.nbytes_max),
    ]


def gradient_cells(one: GradientDigest) -> list[str]:
    return [label(f"{one.reducer} {one.name}"), *map(label, gradient_figures(one)), text(why_words(one))]


def unit_cells(one: UnitTraffic) -> list[str]:
    return [*map(label, unit_figures(one))]


def root_cells(root: RootDigest) -> list[str]:
    return [*map(label, root_figures(root))]


def rpc_cells(pair: RpcDigest) -> list[str]:
    sizes = (pair.nbytes_out, pair.nbytes_back, pair.gradient_nbytes_out, pair.gradient_nbytes_back)
    names = (label(name or "?") for name in (pair.caller, pair.callee, pair.op))
    apart = size_range(pair.nbytes_min, pair.nbytes_max) if pair.steps else NOT_MEASURED
    return [*names, steps_words(pair), calls_words(pair.calls), *map(size, sizes), apart]
