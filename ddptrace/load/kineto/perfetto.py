"""A Perfetto trace (`.pftrace`, protobuf) as the text of the Kineto file that tells the same.

                  Perfetto                                   Kineto
    track         thread, process, or child of one      →    pid, tid, thread_name
    track event   begin and end, category, annotations  →    X, cat, args
    render stage  Kernel, Memcpy or Memset of a queue   →    X, cat, args; device and stream are pid and tid

torch's CUPTI profiler writes render stages; any other writer writes track events with Kineto's categories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ddptrace.load.kineto.perfetto_packets import BOOTTIME, Clocks, Packets, text

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        DebugAnnotation,
        GpuRenderStageEvent,
        InternedData,
        TracePacket,
        TrackDescriptor,
        TrackEvent,
    )

HEAD: Final = b'{"baseTimeNanoseconds":0,"traceEvents":[\n'
TAIL: Final = b"\n]}\n"
BATCH: Final = 4096  # events
BEGIN, END = 1, 2  # types of track events
CLEARED: Final = 1  # flag of a packet: what its sequence named before is void
STAGES: Final = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
DEEPEST: Final = 100  # tracks inside tracks
UNREADABLE: Final = b"null"
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Said:
    """What a slice says beside its times. `args` is JSON."""

    name: str
    category: str
    args: bytes


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice, and where it ran."""

    pid: int | str
    tid: int | str
    begin_ns: int
    end_ns: int
    said: Said

    def as_event(self) -> bytes:
        """Return the event as Kineto writes it."""
        return b'{"ph":"X","cat":%b,"name":%b,"pid":%b,"tid":%b,"ts":%b,"dur":%b,"args":%b}' % (
            _encode(self.said.category),
            _encode(self.said.name),
            _encode(self.pid),
            _encode(self.tid),
            _micros(self.begin_ns),
            _micros(self.end_ns - self.begin_ns),
            self.said.args,
        )


Instant = tuple[int, Said | None]
"""The begin of a slice with what it says, or the end of one with None."""


def kineto_text(pieces: Iterable[bytes]) -> Generator[bytes, None, bool]:
    """Yield the text of a trace whose content is given, all but its `TAIL`. Return whether all of it was there.

    Raises ImportError where the package `perfetto` is not installed.
    """
    trace, packets = _Trace(), Packets(pieces)
    for packet in packets:
        trace.take(packet)
    yield HEAD
    texts = _texts(trace, packets)
    between = b""
    while batch := list(islice(texts, BATCH)):
        yield between + b",\n".join(batch)
        between = b",\n"
    return packets.is_whole


def begins(pieces: Iterable[bytes], categories: Iterable[str]) -> Iterator[int]:
    """Yield when each slice of these categories begins, in Unix nanoseconds and in the order of the file."""
    trace, known = _Trace(), frozenset(categories)
    for packet in Packets(pieces):
        said = trace.take(packet)
        if said is not None and said[1].category.lower() in known:
            yield said[0]


def _texts(trace: _Trace, packets: Packets) -> Iterator[bytes]:
    for pid, tid, name in trace.lanes():
        told = _encode(pid), _encode(tid), _encode(name)
        yield b'{"ph":"M","name":"thread_name","pid":%b,"tid":%b,"args":{"name":%b}}' % told
    yield from (one.as_event() for one in trace.slices())
    yield from [UNREADABLE] * packets.unreadable


def _micros(ns: int) -> bytes:
    return b"%b%d.%03d" % (b"-" * (ns < 0), *divmod(abs(ns), 1000))


@dataclass(slots=True)
class _Writer:
    """What a sequence of packets names once, to point at it by number, and what holds where a packet says nothing."""

    names: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    stages: dict[int, str] = field(default_factory=dict)
    clock: int = BOOTTIME
    track: int = 0

    def learn(self, told: InternedData) -> None:
        self.names.update((one.iid, text(one.name)) for one in told.event_names)
        self.categories.update((one.iid, text(one.name)) for one in told.event_categories)
        self.keys.update((one.iid, text(one.name)) for one in told.debug_annotation_names)
        values = told.debug_annotation_string_values
        self.strings.update((one.iid, one.str.decode(errors="replace")) for one in values)
        self.stages.update((one.iid, text(one.name)) for one in told.gpu_specifications)

    def key(self, given: DebugAnnotation) -> str:
        return text(given.name) or self.keys.get(given.name_iid, "")

    def value(self, given: DebugAnnotation) -> Any:
        """What an annotation holds, as JSON has it."""
        if given.dict_entries:
            return {self.key(entry): self.value(entry) for entry in given.dict_entries}
        if given.array_values:
            return [self.value(entry) for entry in given.array_values]
        kind = given.WhichOneof("value")
        if kind == "string_value_iid":
            return self.strings.get(given.string_value_iid, "")
        if kind == "legacy_json_value":
            return _json(text(given.legacy_json_value))
        if kind == "string_value":
            return text(given.string_value)
        return getattr(given, kind) if kind is not None and kind != "nested_value" else None

    def args(self, given: Iterable[DebugAnnotation]) -> bytes:
        return _encode({self.key(one): self.value(one) for one in given})


def _json(given: str) -> Any:
    try:
        return msgspec.json.decode(given)
    except (msgspec.MsgspecError, RecursionError):
        return given


class _Trace:
    """The slices of a trace, as its packets come in."""

    def __init__(self) -> None:
        self._clocks = Clocks()
        self._writers: dict[int, _Writer] = defaultdict(_Writer)
        self._tracks: dict[int, TrackDescriptor] = {}
        self._instants: dict[int, list[Instant]] = defaultdict(list)  # of each track
        self._stages: list[Slice] = []
        self._queues: dict[tuple[int | str, int | str], str] = {}

    def take(self, packet: TracePacket) -> tuple[int, Said] | None:
        """Take in a packet. Where a slice begins in it, return when, and what it says."""
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & CLEARED or packet.incremental_state_cleared:
            self._writers.pop(sequence, None)
        writer = self._writers[sequence]
        if packet.HasField("interned_data"):
            writer.learn(packet.interned_data)
        if packet.HasField("trace_packet_defaults"):
            told = packet.trace_packet_defaults
            writer.clock, writer.track = told.timestamp_clock_id or BOOTTIME, told.track_event_defaults.track_uuid
        if packet.HasField("clock_snapshot"):
            self._clocks.learn(packet.clock_snapshot, sequence)
            return None
        if packet.HasField("track_descriptor"):
            self._tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("timestamp"):
            return None
        at_ns = self._clocks.unix_ns(packet.timestamp, packet.timestamp_clock_id or writer.clock, sequence)
        if packet.HasField("track_event"):
            return self._take_event(packet.track_event, at_ns, writer)
        if packet.HasField("gpu_render_stage_event"):
            return self._take_stage(packet.gpu_render_stage_event, at_ns, writer)
        return None

    def _take_event(self, event: TrackEvent, at_ns: int, writer: _Writer) -> tuple[int, Said] | None:
        track = event.track_uuid if event.HasField("track_uuid") else writer.track
        if event.type == END:
            self._instants[track].append((at_ns, None))
        if event.type != BEGIN:
            return None
        categories = [*map(text, event.categories), *(writer.categories.get(iid, "") for iid in event.category_iids)]
        name = text(event.name) or writer.names.get(event.name_iid, "")
        said = Said(name, next(iter(categories), ""), writer.args(event.debug_annotations))
        self._instants[track].append((at_ns, said))
        return at_ns, said

    def _take_stage(self, event: GpuRenderStageEvent, at_ns: int, writer: _Writer) -> tuple[int, Said] | None:
        stage = writer.stages.get(event.stage_iid, "")
        if stage not in STAGES:
            return None
        args = {text(one.name): text(one.value) for one in event.extra_data}
        queue = writer.stages.get(event.hw_queue_iid, "")
        stream = args.get("stream id", "")
        tid = int(stream) if stream.isdecimal() and len(stream) < 19 else queue
        self._queues[event.gpu_id, tid] = queue
        said = Said(text(event.name) or writer.names.get(event.name_iid, stage), STAGES[stage], _encode(args))
        self._stages.append(Slice(event.gpu_id, tid, at_ns, at_ns + event.duration, said))
        return at_ns, said

    def lanes(self) -> Iterator[tuple[int | str, int | str, str]]:
        """Yield process, thread and name of all that ran anything."""
        named = {self._lane(track): self._name(track) for track in self._instants}
        yield from ((*lane, name) for lane, name in (self._queues | named).items() if name)

    def slices(self) -> Iterator[Slice]:
        for track, instants in self._instants.items():
            lane = self._lane(track)
            yield from (Slice(*lane, begin_ns, end_ns, said) for begin_ns, end_ns, said in _paired(instants))
        yield from self._stages

    def _thread(self, track: int) -> TrackDescriptor | None:
        """The thread or process that a track belongs to."""
        for _ in range(DEEPEST):
            found = self._tracks.get(track)
            if found is None or found.HasField("thread") or found.HasField("process"):
                return found
            track = found.parent_uuid
        return None

    def _name(self, track: int) -> str:
        owner = self._thread(track)
        is_thread = owner is not None and owner.HasField("thread")
        return text(owner.thread.thread_name) if owner is not None and is_thread else self._own_name(track)

    def _own_name(self, track: int) -> str:
        return text(self._tracks[track].name) if track in self._tracks else ""

    def _lane(self, track: int) -> tuple[int | str, int | str]:
        owner = self._thread(track)
        if owner is not None and owner.HasField("thread"):
            return owner.thread.pid, owner.thread.tid
        return (0 if owner is None else owner.process.pid), self._own_name(track) or f"track {track}"


def _paired(instants: Sequence[Instant]) -> Iterator[tuple[int, int, Said]]:
    """Yield begin, end and what is said of the slices of one track, those around others first."""
    times = [at_ns for at_ns, _ in instants]
    if any(later < earlier for earlier, later in pairwise(times)):
        in_blocks = _in_blocks(instants)
        if in_blocks is not None:
            yield from in_blocks
            return
        instants = sorted(instants, key=lambda instant: instant[0])
    ends = _ends(instants)
    for place, (begin_ns, said) in enumerate(instants):
        if said is not None and place in ends:
            yield begin_ns, ends[place], said


def _ends(instants: Sequence[Instant]) -> dict[int, int]:
    """When the slice ends that begins at each place: an end belongs to the last begin that has none."""
    ends: dict[int, int] = {}
    open_places: list[int] = []
    for place, (at_ns, said) in enumerate(instants):
        if said is not None:
            open_places.append(place)
        elif open_places:
            ends[open_places.pop()] = at_ns
    return ends


def _in_blocks(instants: Sequence[Instant]) -> list[tuple[int, int, Said]] | None:
    """The slices of a writer that writes many begins and then their ends, both in one order, as torch's does; None
    where another wrote them."""
    runs = [list(run) for _, run in groupby(instants, key=lambda instant: instant[1] is None)]
    if instants[0][1] is None or [len(run) for run in runs[::2]] != [len(run) for run in runs[1::2]]:
        return None
    begins, ends = (list(chain.from_iterable(runs[first::2])) for first in (0, 1))
    found = [(begin, end, said) for (begin, said), (end, _) in zip(begins, ends, strict=True) if said is not None]
    return found if all(begin <= end for begin, end, _ in found) else None
