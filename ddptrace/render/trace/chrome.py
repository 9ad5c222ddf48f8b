"""The trace for Perfetto: all ranks in one gzipped file of Chrome's JSON, one process per rank, host by host, and one
for the critical path over them.

Chrome counts in microseconds. They exist only here, with three decimals, so that every nanosecond is kept.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import numpy as np
from isal import igzip

from ddptrace.analysis.intervals import Measure, intersect, pairs, union
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.load.tables import Intervals
from ddptrace.render.ranks.rank_tracks import path_tracks
from ddptrace.render.step_timeline import typical_ordinal
from ddptrace.render.trace.slices import LAUNCH, NO_LAUNCH, DeviceTrack, Slice, SpanTrack, Track, numbered, quoted
from ddptrace.render.trace.tracks import AnyTrack, Island, RankRows, add_matches, by_rank, islands, rank_tracks
from ddptrace.render.whole_file import whole_file
from ddptrace.render.words import host_words

EVENTS_PER_WRITE: Final = 10_000
FASTEST: Final = 1
"""Level of isal's gzip, which takes a fifth of the time of zlib's, and a tenth of its bytes less."""
TRACKS_MAX: Final = 100_000
"""Of one rank: the tracks' numbers are those of threads, which no two processes share."""


def write_trace(result: Result, path: str | os.PathLike[str]) -> Path:
    """Write `path` (trace.json.gz) whole or not at all. Its 0 is the run's zero, or earlier where something was; ranks
    that share no instant with the others have a 0 of their own."""
    with whole_file(path) as raw, _packed(raw) as file:
        write_json(result, file)
    return Path(path)


def _packed(raw: IO[bytes]) -> igzip.IGzipFile:
    return igzip.IGzipFile("", "wb", FASTEST, raw, mtime=0)  # type: ignore[no-untyped-call]


def write_json(result: Result, file: igzip.IGzipFile | IO[bytes]) -> None:
    ranks = by_rank(result)
    several = len({row.reducer for row in result.buckets}) > 1
    flows = itertools.count(1 + len(result.rpcs))  # the first ones are those of remote calls
    add_matches(result, ranks, flows)
    zeros, place = zeros_of(islands(ranks)), places(ranks)
    file.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about(result, zeros))},"traceEvents":[\n'.encode())
    drawn = (rank_chunks(rows, flows, several, zeros.get(rows.rank, 0), place[rows.rank]) for rows in ranks)
    separator = ""
    for chunk in itertools.chain(path_chunks(result, max(place, default=0) + 2, zeros), *drawn):
        # Half a surrogate pair, which a broken name can hold, becomes the JSON escape of itself.
        file.write((separator + ",\n".join(chunk)).encode("utf-8", "backslashreplace"))
        separator = ",\n"
    file.write(b"\n]}\n")


def zeros_of(found: Sequence[Island]) -> dict[int, int]:
    """The instant that is drawn at 0, by rank."""
    if len(found) == 1:
        return dict.fromkeys(found[0].ranks, min(0, found[0].begin_at_ns))
    return {rank: island.begin_at_ns for island in found for rank in island.ranks}


def about(result: Result, zeros: dict[int, int]) -> dict[str, object]:
    """Unix ns are text: they do not fit a JSON number. Instants among the arguments count from `zero_unix_ns`. Of the
    clocks those that are not the reference rank's own; instants of the ones that were shifted are on its time."""
    head = {"tool": "ddptrace", "schema": result.schema, "run_id": result.run_id}
    zero = min(zeros.values(), default=0)
    instants = {
        "zero_unix_ns": str(result.zero_unix_ns),
        "trace_zero_ns": zero,
        "trace_zero_unix_ns": str(result.zero_unix_ns + zero),
    }
    clocks = [asdict(row) for row in result.clocks if row.why != "same clock"]
    apart = {"trace_zero_ns_by_rank": zeros} if len(set(zeros.values())) > 1 else {}
    typical = typical_span(result, zeros)
    shown = {"typical_step": typical} if typical is not None else {}
    holds = {"categories": main_categories(result), "headline": result.savings[0].cause if result.savings else ""}
    return head | instants | apart | shown | holds | ({"clocks": clocks} if clocks else {})


def typical_span(result: Result, zeros: Mapping[int, int]) -> tuple[int, int] | None:
    """When the step that the report draws began and ended, on any rank, in ns of the trace; None without steps."""
    steps, _ = measured_steps(result.steps)
    if not steps:
        return None
    chosen = typical_ordinal(steps)
    spans = [
        (row.begin_at_ns - zeros.get(row.rank, 0), row.end_at_ns - zeros.get(row.rank, 0))
        for row in steps
        if row.step == chosen
    ]
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def main_categories(result: Result) -> list[str]:
    """Return the categories of slices that the trace holds, of those that a viewer may want on top."""
    found = {
        "path": result.critical_path,
        "step": result.steps,
        "compute": any(len(of.compute) for of in result.activity),
        "idle.gap": any(len(window.gaps) for of in result.activity for window in of.idle),
        "bucket.exec": any(row.exec_start_at_ns is not None for row in result.buckets),
        "collective": any(row.bucket is None for row in result.collectives),
    }
    return [category for category, held in found.items() if held]


def path_chunks(result: Result, pid: int, zeros: Mapping[int, int]) -> Iterator[list[str]]:
    """A process of its own, above those of the ranks; none where no path is known."""
    for tid, track in enumerate(path_tracks(result, zeros), start=TRACKS_MAX * pid + 1):
        yield [
            metadata(pid, 0, "process_name", name="critical path"),
            metadata(pid, 0, "process_sort_index", sort_index=-1),
            metadata(pid, tid, "thread_name", name=track.name),
        ]
        yield from slice_chunks(track, f'"pid":{pid},"tid":{tid}', zeros.get(result.critical_path[0].rank, 0))


def rank_chunks(rows: RankRows, flows: Iterator[int], several: bool, zero: int, place: int) -> Iterator[list[str]]:
    """Events of one rank, in lists of bounded length. A process id is the rank + 1, since 0 is the idle process."""
    pid = rows.rank + 1
    yield [
        metadata(pid, 0, "process_name", name=process_name(rows)),
        metadata(pid, 0, "process_sort_index", sort_index=place),
    ]
    for tid, track in enumerate(rank_tracks(rows, flows, several), start=TRACKS_MAX * pid + 1):
        yield [
            metadata(pid, tid, "thread_name", name=track.name),
            metadata(pid, tid, "thread_sort_index", sort_index=tid),
        ]
        yield from slice_chunks(track, f'"pid":{pid},"tid":{tid}', zero)
    yield from counter_chunks(pid, "in flight", "bytes", bytes_in_flight(rows.collectives), zero)
    if rows.activity is not None:
        overlap = running_overlap(rows.steps, rows.collectives, rows.activity.compute)
        yield from counter_chunks(pid, "overlap", "ratio", overlap, zero)


def process_name(rows: RankRows) -> str:
    """The host first: Perfetto shows the ranks of one together."""
    return f"{host_words(rows.row.host) if rows.row else ''}rank {rows.rank}"


def slice_chunks(track: AnyTrack, place: str, zero: int) -> Iterator[list[str]]:
    number = len(track.slices) if isinstance(track, Track) else len(track.spans)
    heads = [device_head(look, place) for look in track.looks] if isinstance(track, DeviceTrack) else []
    for start in range(0, number, EVENTS_PER_WRITE):
        part = slice(start, start + EVENTS_PER_WRITE)
        if isinstance(track, SpanTrack):
            yield span_events(track.looks, track.spans[part], place, zero)
        elif isinstance(track, DeviceTrack):
            yield list(device_events(track, part, heads, place, zero))
        else:
            yield [slice_event(piece, place, zero) for piece in track.slices[part]]


def span_events(looks: Slice, spans: Intervals, place: str, zero: int) -> list[str]:
    begins, durations = (spans[:, 0] - zero).tolist(), (spans[:, 1] - spans[:, 0]).tolist()
    head = f'{{"ph":"X",{place},"name":{quoted(looks.name)},"cat":"{looks.category}","cname":"{looks.colour}","ts":'
    times = zip(begins, durations, strict=True)
    return [f'{head}{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}}}' for ts, dur in times]


def device_head(look: Slice, place: str) -> str:
    """An event up to its times: what all events of this look begin with. Its arguments are left open."""
    head = f'{{"ph":"X",{place},"name":{quoted(look.name)},"cat":"{look.category}","cname":"{look.colour}"'
    return f'{head},"args":{look.args}'


def device_events(track: DeviceTrack, part: slice, heads: Sequence[str], place: str, zero: int) -> Iterator[str]:
    spans = track.spans[part]
    columns = (track.look[part], spans[:, 0] - zero, spans[:, 1] - spans[:, 0], track.delay_ns[part], track.flow[part])
    for look, ts, dur, delay, flow in zip(*(column.tolist() for column in columns), strict=True):
        close = "}" if delay == NO_LAUNCH else f',"launch_delay_ns":{delay}}}'
        yield f'{heads[look]}{close},"ts":{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}}}'
        if flow:
            yield flow_event(ts, place, flow, "f", LAUNCH)


def slice_event(piece: Slice, place: str, zero: int) -> str:
    name, category, begin, end, args, colour, flow, flow_phase, flow_name, flows = piece
    ts = begin - zero
    dur = end - begin
    event = (
        f'{{"ph":"X",{place},"ts":{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d},'
        f'"name":{quoted(name)},"cat":"{category}","cname":"{colour}","args":{args}}}'
    )
    if not flow:
        return event
    arrows = (flow_event(ts, place, arrow, flow_phase, flow_name) for arrow in range(flow, flow + flows))
    return ",\n".join((event, *arrows))


def flow_event(ts: int, place: str, flow: int, phase: str, name: str) -> str:
    """One end of an arrow, at the begin of the slice written just before it: an end outside any slice is an error."""
    at = f'"ts":{ts // 1000}.{ts % 1000:03d}'
    return f'{{"ph":"{phase}","bp":"e",{place},{at},"id":{flow},"name":"{name}","cat":"{name}"}}'


def counter_chunks(pid: int, name: str, unit: str, samples: Iterable[Sample], zero: int) -> Iterator[list[str]]:
    head = f'{{"ph":"C","pid":{pid},"name":"{name}","ts":'
    samples = iter(samples)
    while chunk := list(itertools.islice(samples, EVENTS_PER_WRITE)):
        times = [(at - zero, value) for at, value in chunk]
        yield [f'{head}{ts // 1000}.{ts % 1000:03d},"args":{{"{unit}":{numbered(value)}}}}}' for ts, value in times]


def metadata(pid: int, tid: int, kind: str, **args: str | int) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}, ensure_ascii=False)


def places(ranks: Sequence[RankRows]) -> dict[int, int]:
    """By rank, from 0 on: hosts in the order of their lowest rank, and the ranks of each."""
    hosts = {rows.rank: rows.row.host if rows.row else "" for rows in ranks}
    first: dict[str, int] = {}
    for rank in sorted(hosts):
        first.setdefault(hosts[rank], rank)
    return {rank: place for place, rank in enumerate(sorted(hosts, key=lambda rank: (first[hosts[rank]], rank)))}


# What is counted over time on one rank --------------------------------------------------------------------------------


Sample = tuple[int, float]
"""Instant in ns since the run's zero, value from then on."""


def bytes_in_flight(rows: Sequence[CollectiveRow]) -> Iterator[Sample]:
    """Bytes of the collectives that were launched and not over yet; those whose end is unknown are not counted."""
    changes: dict[int, int] = {}
    for row in rows:
        end = row.exec_end_at_ns if row.exec_end_at_ns is not None else row.done_at_ns
        if row.part == 0 and row.nbytes is not None and end is not None and end > row.launch_at_ns:
            changes[row.launch_at_ns] = changes.get(row.launch_at_ns, 0) + row.nbytes
            changes[end] = changes.get(end, 0) - row.nbytes
    flying = 0
    for at_ns in sorted(changes):
        flying += changes[at_ns]
        yield at_ns, flying


def running_overlap(steps: Sequence[StepRow], rows: Sequence[CollectiveRow], compute: Intervals) -> Iterator[Sample]:
    """Hidden ÷ communication since the step began, said each time a collective ends; 0 at the step's begin."""
    spans = exec_spans(rows)
    comm, every_end = union(spans), np.unique(spans[:, 1])
    comm_so_far, hidden_so_far = Measure(comm), Measure(intersect(comm, union(compute)))
    for step in steps:
        low, high = np.searchsorted(every_end, [step.begin_at_ns, step.end_at_ns], "right")
        ends = every_end[low:high]
        begins = np.full_like(ends, step.begin_at_ns)
        comm_ns = comm_so_far.within(begins, ends)
        ends, begins, comm_ns = ends[comm_ns > 0], begins[comm_ns > 0], comm_ns[comm_ns > 0]
        if len(ends):
            ratios = hidden_so_far.within(begins, ends) / comm_ns
            yield step.begin_at_ns, 0.0
            yield from zip(ends.tolist(), ratios.tolist(), strict=True)


def exec_spans(rows: Sequence[CollectiveRow]) -> Intervals:
    """The exec intervals that are known, in the rows' order."""
    begins_ends = ((row.exec_start_at_ns, row.exec_end_at_ns) for row in rows)
    return pairs((begin, end) for begin, end in begins_ends if begin is not None and end is not None)
