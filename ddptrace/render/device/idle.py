"""What held the host while a device was idle, as rows of a table: on the terminal and in the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.device.digest import idle, launches
from ddptrace.analysis.device.idle import IdleDigest
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.markup import folded, label
from ddptrace.render.words import WIDTH, both_ends
from ddptrace.units import calls_words, millis, percent

MOST_CAUSES: Final = 5  # on the terminal
CAUSES_MAX: Final = 12  # of a rank, in the report
RANKS_MAX: Final = 16  # in the report
ROWS_OPEN: Final = 10
IDLE_MIN_RATIO: Final = 0.05  # of the window: below, what held the host is not worth a table
HEADS: Final = tuple(
    (head, "words" if head == "cause" else "") for head in ("rank", "idle ms", "of idle", "gaps", "gap ms", "cause")
)
SUB: Final = (
    "What the host did while the device was idle: the thread that launched the next work, and the innermost operator,"
    " call or function that it was in. The times add up to the idle time. Half of a row's idle time lies in gaps that"
    " are at least as long as its 'gap ms'. Means per step; if no step was found, sums over all windows."
)
ENGINE: Final = "autograd::engine::evaluate_function: "
CAUSES: Final = {
    "nothing": "nothing recorded",
    "operator": "operator",
    "python": "Python",
    "launch": "launch",
    "runtime": "runtime call",
    "data": "data loader",
    "copy": "copy",
    "synchronize": "synchronization",
    "allocate": "allocation",
    "collect": "garbage collection",
    "queued": "work was queued",
}


def idle_lines(result: Result) -> Iterator[str]:
    """The causes of the rank whose device was idle longest; nothing where it was hardly idle."""
    ranks = idle_ranks(result)
    if not ranks:
        return
    rank, causes = ranks[0]
    of = f"{MOST_CAUSES} of {len(causes)}, " if len(causes) > MOST_CAUSES else ""
    per = "per step" if result.launches else "in all windows"
    yield f"Idle time of rank {rank}'s device, by what held the host  ({of}{per})"
    yield f"  {'idle ms':>9} {'of idle':>8} {'gaps':>7} {'gap ms':>8}  cause"
    for cause in causes[:MOST_CAUSES]:
        figures = f"{millis(cause.idle_ns):>9} {percent(cause.ratio):>8} {calls_words(cause.gaps):>7}"
        yield f"  {figures} {millis(cause.half_gap_ns):>8}  {both_ends(printable(idle_words(cause)), WIDTH - 39)}"
    yield "  gap ms: half of the idle time lies in gaps that are at least as long"


def idle_table(result: Result) -> str:
    """The causes of each rank, the longest idle first; of many ranks these."""
    rows = [idle_cells(cause) for _, causes in idle_ranks(result)[:RANKS_MAX] for cause in causes[:CAUSES_MAX]]
    return folded(HEADS, rows, ROWS_OPEN, "causes") if rows else ""


def idle_ranks(result: Result) -> list[tuple[int, list[IdleDigest]]]:
    """Ranks whose device was idle for a share of the time that matters, the longest first."""
    spans = {row.rank: row.all.span_ns for row in result.ranks if row.all is not None}
    spans |= {row.rank: row.window_ns for row in launches(result)}
    by_rank: defaultdict[int, list[IdleDigest]] = defaultdict(list)
    for digest in idle(result):
        by_rank[digest.rank].append(digest)
    totals = {rank: sum(digest.idle_ns for digest in causes) for rank, causes in by_rank.items()}
    worth = [rank for rank in by_rank if totals[rank] > IDLE_MIN_RATIO * spans.get(rank, 0)]
    return [(rank, by_rank[rank]) for rank in sorted(worth, key=lambda rank: -totals[rank])]


def idle_cells(cause: IdleDigest) -> list[str]:
    return [
        str(cause.rank),
        millis(cause.idle_ns),
        label(percent(cause.ratio)),
        calls_words(cause.gaps),
        millis(cause.half_gap_ns),
        label(idle_words(cause)),
    ]


def idle_words(cause: IdleDigest) -> str:
    """As in "copy: cudaMemcpyAsync in aten::to"."""
    names = (name.removeprefix(ENGINE) for name in (cause.name, cause.operator))
    where = " in ".join(dict.fromkeys(filter(None, names)))
    if cause.cause == "queued":
        return f"{CAUSES[cause.cause]}; host in {where}" if where else CAUSES[cause.cause]
    return f"{CAUSES[cause.cause]}: {where}" if where else CAUSES[cause.cause]
