"""The rows of a rank's longest idle gaps in the trace: what held the host in each, and the launching threads' ranges.

idle gaps                 | idle 64.3 ms                            |
                          | aten::to | copy: cudaMemcpyAsync     |
around gaps: thread 12    | aten::to ─────────────────────────────| aten::mm |
                             | cudaMemcpyAsync ─────────────────|
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddptrace.analysis.tables.device import LongGaps
from ddptrace.load.tables import HostRanges, IdleCause
from ddptrace.render.device.idle import CAUSES
from ddptrace.render.trace.lanes import Slice, Track, nested
from ddptrace.render.trace.slices import measured
from ddptrace.units import duration


def gap_tracks(windows: Sequence[LongGaps]) -> Iterator[Track]:
    """First the gaps, then each thread's ranges."""
    gaps = [piece for window in windows for piece in gap_slices(window)]
    if not gaps:
        return
    yield Track("idle gaps", gaps)
    threads: defaultdict[str, list[Slice]] = defaultdict(list)
    for window in windows:
        if window.around is not None:
            for thread, ranges in by_thread(window.around).items():
                threads[thread] += ranges
    for thread in sorted(threads):
        yield Track(f"around gaps: {thread}", inside(threads[thread]))


def gap_slices(window: LongGaps) -> Iterator[Slice]:
    """Each gap, and inside it what held the host."""
    held: defaultdict[int, list[Slice]] = defaultdict(list)
    columns = window.gap, window.begin_at_ns, window.end_at_ns, window.cause, window.name
    for gap, begin, end, cause, name in zip(*(column.tolist() for column in columns), strict=True):
        word = CAUSES[IdleCause(cause).word]
        told = f"{word}: {window.names[name]}" if name >= 0 else word
        held[gap].append(Slice(told, "idle.cause", begin, end, "{}", "grey"))
    for number, (begin, end) in enumerate(window.gaps.tolist()):
        outer = Slice(
            f"idle {duration(end - begin)}", "idle.gap", begin, end, measured([("idle_ns", end - begin)]), "bad"
        )
        yield from nested(outer, held[number])


def by_thread(ranges: HostRanges) -> dict[str, list[Slice]]:
    """As they are in the file, in order of begin."""
    found: defaultdict[str, list[Slice]] = defaultdict(list)
    columns = ranges.name, ranges.thread, ranges.begin_at_ns, ranges.end_at_ns, ranges.is_runtime
    for name, thread, begin, end, is_runtime in zip(*(column.tolist() for column in columns), strict=True):
        look = ("host.runtime", "rail_load") if is_runtime else ("host.operator", "rail_response")
        found[ranges.threads[thread]].append(Slice(ranges.names[name], look[0], begin, end, "{}", look[1]))
    return found


def inside(slices: Sequence[Slice]) -> list[Slice]:
    """Slices that nest: one that outlives the one around it, as with rounded times, ends with that."""
    around: list[int] = []  # ends of those that are open
    found = []
    for piece in slices:
        while around and around[-1] <= piece.begin_at_ns:
            around.pop()
        end = min(piece.end_at_ns, around[-1]) if around else piece.end_at_ns
        around.append(end)
        found.append(piece if end == piece.end_at_ns else piece._replace(end_at_ns=end))
    return found
