"""Writes a Kineto file as a Perfetto trace."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

SEQUENCE = 7
Lane = tuple[Any, Any]


def events_of(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete events of a Kineto file, with exact times, and what these count from."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    told = json.loads(text, parse_float=Decimal)
    events = told["traceEvents"] if isinstance(told, dict) else told
    return events, int(told.get("baseTimeNanoseconds", 0)) if isinstance(told, dict) else 0


def as_tracks(path: Path) -> bytes:
    """Each lane as a thread's track, and its slices that do not nest on further tracks inside it."""
    events, base = events_of(path)
    names = {
        (_number(e["pid"]), _number(e["tid"])): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    lanes: dict[Lane, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            lanes[_number(event["pid"]), _number(event["tid"])].append(event)
    builder = TraceProtoBuilder()
    for number, (lane, slices) in enumerate(lanes.items(), start=1):
        for depth, track in enumerate(_nesting(slices, base)):
            _add_track(builder, uuid=1000 * number + depth, lane=lane, name=names.get(lane, ""), depth=depth)
            for at_ns, event in track:
                _add_instant(builder, 1000 * number + depth, at_ns, event)
    return bytes(builder.serialize())


def _nesting(slices: list[dict[str, Any]], base: int) -> list[list[tuple[int, dict[str, Any] | None]]]:
    """Begins and ends of the slices of a lane, in order, on as many tracks as they need to nest."""
    tracks: list[list[tuple[int, dict[str, Any] | None]]] = []
    open_ends: list[list[int]] = []
    spans = [(base + nanos(event["ts"]), nanos(event.get("dur", 0)), event) for event in slices]
    for begin, length, event in sorted(spans, key=lambda span: (span[0], -span[1])):
        for track, ends in zip(tracks, open_ends, strict=True):
            while ends and ends[-1] <= begin:
                track.append((ends.pop(), None))
            if not ends or begin + length <= ends[-1]:
                break
        else:
            track, ends = [], []
            tracks.append(track)
            open_ends.append(ends)
        track.append((begin, event))
        ends.append(begin + length)
    for track, ends in zip(tracks, open_ends, strict=True):
        track += [(end, None) for end in reversed(ends)]
    return tracks


def _add_track(builder: TraceProtoBuilder, *, uuid: int, lane: Lane, name: str, depth: int) -> None:
    track = builder.add_packet().track_descriptor
    track.uuid = uuid
    if depth:
        track.parent_uuid, track.name = uuid - depth, f"overlapping {depth}"
    elif all(isinstance(part, int) for part in lane):
        track.thread.pid, track.thread.tid, track.thread.thread_name = *lane, name
    else:
        track.name = " ".join(map(str, lane))


def _add_instant(builder: TraceProtoBuilder, uuid: int, at_ns: int, event: dict[str, Any] | None) -> None:
    packet = builder.add_packet()
    packet.timestamp, packet.trusted_packet_sequence_id = at_ns, SEQUENCE
    packet.track_event.track_uuid = uuid
    packet.track_event.type = TrackEvent.TYPE_SLICE_END if event is None else TrackEvent.TYPE_SLICE_BEGIN
    if event is not None:
        packet.track_event.name = str(event["name"])
        packet.track_event.categories.append(event.get("cat", ""))
        for name, value in event.get("args", {}).items():
            annotate(packet.track_event.debug_annotations.add(name=name), value)


def _number(said: Any) -> Any:
    return int(said) if str(said).isdecimal() else said


def annotate(place: DebugAnnotation, value: Any) -> None:
    if isinstance(value, bool):
        place.bool_value = value
    elif isinstance(value, int) and value >= 2**63:
        place.uint_value = value
    elif isinstance(value, int):
        place.int_value = value
    elif isinstance(value, Decimal):
        place.double_value = float(value)
    elif isinstance(value, list):
        for one in value:
            annotate(place.array_values.add(), one)
    elif isinstance(value, dict):
        for name, one in value.items():
            annotate(place.dict_entries.add(name=name), one)
    elif value is not None:
        place.string_value = value


def nanos(micros: Decimal | int) -> int:
    """Microseconds as nanoseconds."""
    return int(micros * 1000)
