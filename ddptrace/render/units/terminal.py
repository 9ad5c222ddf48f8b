"""What the terminal says of units, and of the dimensions of parallelism."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.units.digest import DimensionDigest, UnitDigest, Units, dimensions
from ddptrace.errors import printable
from ddptrace.render.units.words import ahead_words, dimension_words, edge_words, role_words
from ddptrace.render.words import WIDTH, both_ends, hidden_words
from ddptrace.units import calls_words, counted, millis, percent, size

MOST_UNITS: Final = 6


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
    parts = f"{millis(one.peer_wait_ns):>8} {millis(one.bubble_ns or None):>9} {millis(one.transfer_ns):>11}"
    return f"  {dimension_words(one):<28} {both_ends(printable(one.mesh or '-'), 8):<8} {exposed} {parts}"
