"""Units for the terminal and the report: those that a step waits for, and what each dimension of parallelism costs.

In: a `Result`. Out: lines of text and sections of the report.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.units.digest import (
    PARTS,
    DimensionDigest,
    UnitDigest,
    Units,
    dimensions,
    tensor_cost,
    units,
)
from ddptrace.errors import printable
from ddptrace.render.markup import Heads, folded, label, table, text, without_empty
from ddptrace.render.words import WIDTH, both_ends, hidden_words
from ddptrace.units import calls_words, counted, duration, millis, percent, size

TITLE: Final = "Exposed time per unit"
SUB: Final = (
    "Which FSDP unit, module or stage the step waits for. Ahead: how many units before its own use a unit is gathered."
)
BY_DIMENSION: Final = "Exposed time per dimension"
BY_DIMENSION_SUB: Final = (
    "What communication along each dimension of parallelism costs the typical step: before the last of the ranks has"
    " come (late), in the bubble of a pipeline's schedule, while all have come (transfer), and where nothing tells"
    " which."
)
ROWS_OPEN: Final = 10
ROWS_MAX: Final = 200
MOST_UNITS: Final = 6  # on the terminal
HEADS: Final[Heads] = (
    ("unit", "words"), ("role", "words"), ("exposed ms", ""), ("of step", ""), ("comm ms", ""), ("hidden", ""),
    ("queued behind ms", ""), ("ahead", ""), ("calls", ""), ("size", ""), ("parameters", ""), ("evidence", "words"),
)  # fmt: skip
DIMENSION_HEADS: Final[Heads] = (
    ("dimension", "words"), ("mesh", "words"), ("exposed ms", ""), ("of step", ""), ("late ms", ""),
    ("bubble ms", ""), ("transfer ms", ""), ("not known ms", ""), ("calls", ""),
)  # fmt: skip
DIMENSIONS: Final = {
    "dp": "data parallel",
    "fsdp": "sharded data parallel",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "ep": "expert parallel",
    "cp": "context parallel",
    "other": "other",
    "unknown": "no recorded call",
}


def unit_table(result: Result) -> str:
    """Units, most exposed first; nothing where there are none."""
    found = units(result)
    rows = [unit_cells(unit) for unit in found.units[:ROWS_MAX]]
    if not rows:
        return ""
    heads, rows = without_empty(HEADS, rows)
    return folded(heads, rows, ROWS_OPEN, _rest_words(found)) + f"<p>{text(edge_words(found))}</p>"


def _rest_words(found: Units) -> str:
    unseen = len(found.units) - ROWS_MAX
    return "units" + (f"; {counted(unseen, 'less exposed one')} stand in analysis.json" if unseen > 0 else "")


def unit_cells(unit: UnitDigest) -> list[str]:
    return [
        label(unit.name),
        label(role_words(unit)),
        millis(unit.exposed_charged_ns),
        escape(percent(unit.step_ratio)),
        millis(unit.comm_ns),
        escape(hidden_words(unit.hidden_ns, unit.comm_ns)),
        millis(unit.behind_ns or None),
        escape(ahead_words(unit)),
        calls_words(unit.calls),
        size(unit.nbytes),
        size(unit.whole_nbytes),
        escape(unit.evidence or "not measured"),
    ]


def dimension_table(result: Result) -> str:
    """Dimensions, most exposed first; nothing for a run with one alone."""
    found = dimensions(result)
    return table(*without_empty(DIMENSION_HEADS, [*map(dimension_cells, found)])) if len(found) > 1 else ""


def dimension_cells(one: DimensionDigest) -> list[str]:
    return [
        label(dimension_words(one)),
        label(one.mesh or "-"),
        millis(one.exposed_charged_ns),
        escape(percent(one.step_ratio)),
        *(millis(getattr(one, part) or None) for part in PARTS),
        calls_words(one.calls),
    ]


def dimension_words(one: DimensionDigest) -> str:
    """As in "tp (tensor parallel)"."""
    words = DIMENSIONS[one.dimension]
    return words if words == one.dimension else f"{one.dimension} ({words})"


def role_words(unit: UnitDigest) -> str:
    """As in "unshard, backward"."""
    return unit.role if unit.phase is None else f"{unit.role}, {unit.phase}"


def ahead_words(unit: UnitDigest) -> str:
    """How many units ahead of its use it is gathered, in figures; "-" for what is no gather."""
    return "-" if unit.prefetch_distance is None else f"{unit.prefetch_distance:g}"


def edge_words(units: Units) -> str:
    """What of the exposed time of FSDP units no earlier launch hides; empty where nothing is exposed."""
    edges = units.edges
    if edges is None:
        return ""
    parts = [
        f"{duration(ns)} the {what}"
        for ns, what in (
            (edges.first_ns, "first gather"),
            (edges.last_ns, "last reduction"),
            (edges.root_ns, "rest of the root unit"),
        )
        if ns
    ]
    return f"Of this, with nothing before or after it to hide it: {', '.join(parts)}." if parts else ""


def tensor_lines(result: Result) -> Iterator[str]:
    """Nothing where nothing tells when the results of tensor-parallel modules are needed."""
    cost = tensor_cost(result)
    if cost is not None:
        yield f"Tensor parallelism  {duration(cost.exposed_ns)} of a step exposed"
        yield f"  by nature, the next operator needs the result at once   {duration(cost.by_nature_ns):>9}"
        yield f"  by order, what computes meanwhile is too short          {duration(cost.by_order_ns):>9}"


def unit_lines(found: Units) -> Iterator[str]:
    """The units that the step waits for, worst first."""
    exposed = [unit for unit in found.units if unit.exposed_charged_ns]
    if not exposed:
        return
    shown = exposed[:MOST_UNITS]
    yield f"Most exposed units  ({len(shown)} of {len(found.units)}, mean over {counted(found.steps, 'rank-step')})"
    heads = f"{'size':>8} {'calls':>6} {'exposed ms':>10} {'of step':>7} {'hidden':>6} {'ahead':>5}"
    yield f"  {'unit':<20} {'role':<24} {heads}"
    yield from map(unit_line, shown)
    yield from textwrap.wrap(edge_words(found), WIDTH, initial_indent="  ", subsequent_indent="  ")


def unit_line(unit: UnitDigest) -> str:
    what = f"{both_ends(printable(unit.name), 20):<20} {both_ends(role_words(unit), 24):<24}"
    hidden = hidden_words(unit.hidden_ns, unit.comm_ns)
    times = f"{millis(unit.exposed_charged_ns):>10} {percent(unit.step_ratio):>7} {hidden:>6}"
    return f"  {what} {size(unit.nbytes):>8} {calls_words(unit.calls):>6} {times} {ahead_words(unit):>5}"


def dimension_lines(result: Result) -> Iterator[str]:
    """What each dimension costs the typical step, of a run with several."""
    found = dimensions(result)
    if len(found) < 2:
        return
    yield "Exposed communication by dimension of parallelism"
    heads = f"{'calls':>6} {'exposed ms':>10} {'of step':>7} {'late ms':>8} {'bubble ms':>9} {'transfer ms':>11}"
    yield f"  {'dimension':<28} {'mesh':<8} {heads}"
    yield from map(dimension_line, found)
    yield "  late: a rank had not come to the collective; transfer: all had"


def dimension_line(one: DimensionDigest) -> str:
    exposed = f"{calls_words(one.calls):>6} {millis(one.exposed_charged_ns):>10} {percent(one.step_ratio):>7}"
    late, bubble, transfer = (one.peer_wait_ns, one.bubble_ns or None, one.transfer_ns) if one.is_known else [None] * 3
    parts = f"{millis(late):>8} {millis(bubble):>9} {millis(transfer):>11}"
    return f"  {dimension_words(one):<28} {both_ends(printable(one.mesh or '-'), 8):<8} {exposed} {parts}"
