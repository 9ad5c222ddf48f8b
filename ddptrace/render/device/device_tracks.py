"""A rank's devices in the trace: every kernel, copy and fill on its stream, and who launched communication.

communication launches     |s|                     arrows to the communication
stream 0:7       | gemm | elementwise |    | gemm |
stream 0:20              | ncclKernel_AllReduce |

For each of a rank's longest idle gaps, what held the host in it, and the ranges of the threads that launched:

idle gaps                 | idle 64.3 ms                            |
                          | aten::to | copy: cudaMemcpyAsync     |
around gaps: thread 12    | aten::to ─────────────────────────────| aten::mm |
                             | cudaMemcpyAsync ─────────────────|
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.tables.device import LongGaps
from ddptrace.load.tables import DeviceWork, HostRanges, IdleCause, Intervals, Work
from ddptrace.render.device.time_spent import CAUSES
from ddptrace.render.trace.slices import NO_LAUNCH, DeviceTrack, Slice, Track, apart, lay_out, measured, nested
from ddptrace.render.words import kernel_name
from ddptrace.units import duration

Ints = NDArray[np.int64]

ARROWS_MAX: Final = 10_000
"""Of one rank: so many arrows Perfetto still draws at ease."""
LOOKS: Final = {
    Work.COMPUTE: ("device.compute", "thread_state_running"),
    Work.COMM: ("device.comm", "terrible"),
    Work.MEMORY: ("device.memory", "thread_state_iowait"),
}
"""Category and colour."""
SCOPES: Final = ("module", "annotation", "operator")


@dataclass(frozen=True, slots=True)
class Pieces:
    """All work of a rank, window after window. Columns have shape (n,), spans (n, 2)."""

    looks: Sequence[Slice]
    streams: tuple[str, ...]
    look: Ints  # index into `looks`
    stream: Ints  # index into `streams`
    is_comm: NDArray[np.bool_]
    spans: Intervals
    launched: NDArray[np.bool_]
    launches: Intervals  # the host's calls; anything where `launched` is false


def device_tracks(works: Sequence[DeviceWork], flows: Iterator[int]) -> Iterator[Track | DeviceTrack]:
    """`flows` gives each arrow from a launch to its communication a number of its own."""
    if not works:
        return
    pieces = pieces_of(works)
    arrows = np.zeros(len(pieces.look), np.int64)
    yield from lay_out("communication launches", [(launch,) for launch in launch_slices(pieces, arrows, flows)])
    delays = np.where(pieces.launched, pieces.spans[:, 0] - pieces.launches[:, 0], NO_LAUNCH)
    for stream in sorted(range(len(pieces.streams)), key=lambda one: natural(pieces.streams[one])):
        mine, name = np.flatnonzero(pieces.stream == stream), f"stream {pieces.streams[stream]}"
        for number, lane in enumerate(apart(pieces.spans[mine]), start=1):
            own = mine[lane]
            columns = pieces.look[own], pieces.spans[own], delays[own], arrows[own]
            yield DeviceTrack(name if number == 1 else f"{name} · {number}", pieces.looks, *columns)


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which "0:7" comes before "0:20"."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part]


def pieces_of(works: Sequence[DeviceWork]) -> Pieces:
    """Streams of one name are one in all windows; looks are each window's own."""
    streams = tuple(dict.fromkeys(name for work in works for name in work.streams))
    looks: list[Slice] = []
    parts = []
    for work in works:
        number = np.array([streams.index(name) for name in work.streams], np.int64)
        found, look = looks_of(work)
        ends = np.maximum(work.end_at_ns, work.begin_at_ns)
        spans = np.column_stack((work.begin_at_ns, ends))
        launches = np.column_stack((work.launch_begin_at_ns, work.launch_end_at_ns))
        parts.append((look + len(looks), number[work.stream], work.kind == Work.COMM, spans, work.launched, launches))
        looks += found
    return Pieces(looks, streams, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def looks_of(work: DeviceWork) -> tuple[list[Slice], Ints]:
    """The looks that occur, and which of them each piece of work has: few, where kernels are many."""
    columns = (work.kind.astype(np.int64), work.name, *(getattr(work, scope) for scope in SCOPES))
    look, first = np.zeros(len(work.kind), np.int64), np.zeros(0, np.int64)
    for column in columns:
        _, first, look = np.unique(look * (len(work.names) + 4) + column + 1, return_index=True, return_inverse=True)
    return [look_of(work, int(one)) for one in first], look


def look_of(work: DeviceWork, at: int) -> Slice:
    category, colour = LOOKS[Work(work.kind[at])]
    name = work.names[work.name[at]]
    scopes = ((scope, getattr(work, scope)[at]) for scope in SCOPES)
    said = [("kernel", name), *((scope, work.names[index] if index >= 0 else None) for scope, index in scopes)]
    return Slice(kernel_name(name), category, 0, 0, measured(said).removesuffix("}"), colour)


def launch_slices(pieces: Pieces, arrows: Ints, flows: Iterator[int]) -> Iterator[Slice]:
    """The host's calls that launched communication, each with an arrow to the first piece that it launched; none goes
    back in time. The numbers of the arrows are written into `arrows`, by piece."""
    seen = np.flatnonzero(pieces.is_comm & pieces.launched)
    seen = seen[np.argsort(pieces.spans[seen, 0], kind="stable")]
    calls, first = np.unique(pieces.launches[seen], axis=0, return_index=True)
    room = ARROWS_MAX
    for (begin, end), at in zip(calls.tolist(), seen[first].tolist(), strict=True):
        if room and begin <= pieces.spans[at, 0]:
            arrows[at], room = next(flows), room - 1
        name = f"launch {pieces.looks[pieces.look[at]].name}"
        yield Slice(name, "launch", begin, end, "{}", "yellow", int(arrows[at]), "s")


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
