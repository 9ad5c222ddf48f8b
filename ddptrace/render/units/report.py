"""The report's tables of units and of dimensions of parallelism, as HTML."""

from __future__ import annotations

from html import escape
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.units.digest import PARTS, DimensionDigest, UnitDigest, Units, dimensions, units
from ddptrace.render.markup import Heads, folded, label, table, text, without_empty
from ddptrace.render.units.words import ahead_words, dimension_words, edge_words, role_words
from ddptrace.render.words import hidden_words
from ddptrace.units import calls_words, counted, millis, percent, size

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
HEADS: Final[Heads] = (
    ("unit", "words"), ("role", "words"), ("exposed ms", ""), ("of step", ""), ("comm ms", ""), ("hidden", ""),
    ("queued behind ms", ""), ("ahead", ""), ("calls", ""), ("size", ""), ("parameters", ""), ("evidence", "words"),
)  # fmt: skip
DIMENSION_HEADS: Final[Heads] = (
    ("dimension", "words"), ("mesh", "words"), ("exposed ms", ""), ("of step", ""), ("late ms", ""),
    ("bubble ms", ""), ("transfer ms", ""), ("not known ms", ""), ("calls", ""),
)  # fmt: skip


def unit_table(result: Result) -> str:
    """Units, most exposed first; nothing where there are none."""
    found = units(result)
    rows = [unit_cells(unit) for unit in found.units[:ROWS_MAX]]
    if not rows:
        return ""
    heads, rows = without_empty(HEADS, rows)
    return folded(heads, rows, ROWS_OPEN, _rest(found)) + f"<p>{text(edge_words(found))}</p>"


def _rest(found: Units) -> str:
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
