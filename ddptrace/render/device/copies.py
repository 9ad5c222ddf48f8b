"""What copies cost a step, as rows of a table: on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.device.copies import CopyDigest
from ddptrace.analysis.device.digest import copies, launches
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.markup import folded, label
from ddptrace.render.words import WIDTH, both_ends
from ddptrace.units import calls_words, millis, rate, size

MOST_COPIES: Final = 4  # on the terminal
ROWS_MAX: Final = 40  # in the report
ROWS_OPEN: Final = 10
MIN_RATIO: Final = 0.02  # of the window: copies that cost less are not worth a table
HEADS: Final = tuple(
    (head, "words" if head == "copies" else "")
    for head in ("rank", "exposed ms", "host blocked ms", "device idle ms", "count", "bytes", "rate", "copies")
)
SUB: Final = (
    "Exposed: a copy ran, and no kernel. Host blocked: the host was inside the calls that copy pageable memory; they"
    " return when the copy is over, and a copy to the host waits for all work before it. Device idle: nothing ran"
    " meanwhile. Means per step; if no step was found, sums over all windows."
)


def copy_lines(result: Result) -> Iterator[str]:
    """The costliest copies of the rank that they cost most; nothing where they cost little."""
    found = costly_copies(result)
    if not found:
        return
    rank = max(found, key=lambda copy: copy.cost_ns).rank
    mine = [copy for copy in found if copy.rank == rank]
    of = f"{MOST_COPIES} of {len(mine)}, " if len(mine) > MOST_COPIES else ""
    yield f"Copies of rank {rank}  ({of}{'per step' if result.launches else 'in all windows'})"
    yield f"  {'exposed ms':>10} {'blocked ms':>10} {'idle ms':>8} {'count':>6} {'bytes':>8} {'rate':>9}  copies"
    for copy in mine[:MOST_COPIES]:
        times = f"{millis(copy.exposed_ns):>10} {millis(copy.blocked_ns):>10} {millis(copy.blocked_idle_ns):>8}"
        moved = f"{calls_words(copy.events):>6} {size(copy.nbytes):>8} {rate(copy.nbytes_per_s):>9}"
        yield f"  {times} {moved}  {both_ends(printable(copy.name), WIDTH - 60)}"
    yield "  blocked: the host was in calls that copy pageable memory; idle: the device was idle meanwhile"


def copy_table(result: Result) -> str:
    rows = list(map(_cells, costly_copies(result)[:ROWS_MAX]))
    return folded(HEADS, rows, ROWS_OPEN, "kinds of copies") if rows else ""


def costly_copies(result: Result) -> list[CopyDigest]:
    """All copies of the ranks on which some cost a share of the time that matters."""
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    spans |= {row.rank: row.window_ns for row in launches(result)}
    found = copies(result)
    ranks = {copy.rank for copy in found if copy.cost_ns > MIN_RATIO * spans.get(copy.rank, 0)}
    return [copy for copy in found if copy.rank in ranks]


def _cells(copy: CopyDigest) -> list[str]:
    return [
        str(copy.rank),
        millis(copy.exposed_ns),
        millis(copy.blocked_ns),
        millis(copy.blocked_idle_ns),
        calls_words(copy.events),
        size(copy.nbytes),
        rate(copy.nbytes_per_s),
        label(copy.name),
    ]
