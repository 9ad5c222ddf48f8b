"""Perfetto traces read as the Kineto files that tell the same, and files that Zstandard packs."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

import ddptrace
from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto.events import Category, FileFacts, KinetoEvents
from ddptrace.load.kineto.head import identify
from ddptrace.load.kineto.perfetto_packets import is_perfetto
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.sources import find_traces
from ddptrace.trim.trim import trim
from tests.perfetto_writer import SEQUENCE, as_tracks

AT_NS = 1_760_000_000_123_456_789


def rows(events: KinetoEvents) -> list[tuple[Any, ...]]:
    """All that is known of each event, whatever the order of those that begin at the same time."""
    columns = zip(events.begin_ns.tolist(), events.end_ns.tolist(), events.name.tolist(), strict=True)
    return sorted(
        (
            *(begin, end, events.names[name]),
            *(int(events.category[at]), int(events.correlation[at]), bool(events.is_collective[at])),
            repr((events.lanes[events.lane[at]], events.collectives.get(at), events.nbytes.get(at))),
            repr(events.flops.get(at)),
        )
        for at, (begin, end, name) in enumerate(columns)
    )


@pytest.mark.parametrize("file", ["odd/cpu_only_gloo_rank34.pt.trace.json.gz", "odd/cuda_event_sync.json.gz"])
def test_a_real_trace_reads_as_it_did_before_somebody_converted_it(
    shared_traces: Path, tmp_path: Path, file: str
) -> None:
    converted = tmp_path / "rank-34.pftrace"
    converted.write_bytes(as_tracks(shared_traces / file))
    read = read_kineto(converted)
    assert rows(read) == rows(read_kineto(shared_traces / file))
    assert read.facts == FileFacts()
    assert identify(converted).first_unix_ns == identify(shared_traces / file, with_time=True).first_unix_ns


def test_a_converted_trace_is_analyzed_and_trimmed_like_the_trace_itself(shared_traces: Path, tmp_path: Path) -> None:
    source = shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz"
    told = json.loads(gzip.decompress(source.read_bytes()))
    del told["distributedInfo"]  # which a Perfetto trace has no place for
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "rank-34.json").write_text(json.dumps(told))
    (tmp_path / "rank-34.pftrace").write_bytes(as_tracks(source))
    whole, converted = ddptrace.analyze(tmp_path / "before"), ddptrace.analyze(tmp_path / "rank-34.pftrace")
    assert len(converted.steps) == 5
    for table in ("steps", "buckets", "collectives", "phases"):
        assert getattr(converted, table) == getattr(whole, table)
    trimmed = trim(tmp_path / "rank-34.pftrace", 553, 554)
    assert trimmed.place.name == "rank-34.trimmed.json.gz"
    kept = [row for row in ddptrace.analyze(trimmed.place).steps if row.step in (553, 554)]
    assert [row.compute_ns for row in kept] == [row.compute_ns for row in whole.steps if row.step in (553, 554)]


def by_cupti(*, in_unix_time: bool = True) -> TraceProtoBuilder:
    """A trace as torch's CUPTI profiler writes it: names by number, begins before ends, render stages of the device."""
    builder = TraceProtoBuilder()
    clocks = builder.add_packet().clock_snapshot
    clocks.clocks.add(clock_id=6, timestamp=AT_NS if in_unix_time else 1000)
    clocks.clocks.add(clock_id=1, timestamp=AT_NS)
    zero = AT_NS if in_unix_time else 1000
    track = builder.add_packet().track_descriptor
    track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = 1, 10, 11, "main"
    named = packet(builder)
    named.sequence_flags = 1
    for iid, name in enumerate(("aten::mm", "cudaLaunchKernel", "ncclDevKernel_AllReduce"), start=1):
        named.interned_data.event_names.add(iid=iid, name=name)
    for iid, name in enumerate(("cpu_op", "cuda_runtime"), start=1):
        named.interned_data.event_categories.add(iid=iid, name=name)
    for iid, name in ((1, "Kernel"), (2, "Memcpy"), (4, "Annotation"), (100, "[7] stream 7")):
        named.interned_data.gpu_specifications.add(iid=iid, name=name)
    slices = ((0, 100, 1, 1), (100, 200, 1, 1), (110, 150, 2, 2))
    for begin, _, name, category in slices:
        event = packet(builder, zero + begin).track_event
        event.type, event.track_uuid, event.name_iid = TrackEvent.TYPE_SLICE_BEGIN, 1, name
        event.category_iids.append(category)
        if name == 2:
            event.debug_annotations.add(name="correlation", int_value=77)
    for _, end, _, _ in slices:
        event = packet(builder, zero + end).track_event
        event.type, event.track_uuid = TrackEvent.TYPE_SLICE_END, 1
    for stage, name, args in (
        (1, 3, {"correlation": "77", "Collective name": "allreduce", "In msg nelems": "5", "dtype": "Float"}),
        (2, 0, {"bytes": "4096"}),
        (4, 0, {}),
    ):
        event = packet(builder, zero + 1000 * stage).gpu_render_stage_event
        event.duration, event.gpu_id, event.stage_iid, event.hw_queue_iid, event.name_iid = 500, 3, stage, 100, name
        for key, value in (args | {"stream id": "7"}).items():
            event.extra_data.add(name=key, value=value)
    return builder


def packet(builder: TraceProtoBuilder, at_ns: int | None = None) -> TracePacket:
    made: TracePacket = builder.add_packet()
    made.trusted_packet_sequence_id = SEQUENCE
    if at_ns is not None:
        made.timestamp = at_ns
    return made


@pytest.mark.parametrize("in_unix_time", [True, False])
def test_what_torch_itself_writes_is_read(tmp_path: Path, in_unix_time: bool) -> None:
    path = tmp_path / "rank-0.pftrace.gz"
    path.write_bytes(gzip.compress(by_cupti(in_unix_time=in_unix_time).serialize()))
    read = read_kineto(path)
    assert [
        (read.names[name], Category(kind).name, begin - AT_NS, end - AT_NS)
        for name, kind, begin, end in zip(
            *(column.tolist() for column in (read.name, read.category, read.begin_ns, read.end_ns)), strict=True
        )
    ] == [
        ("aten::mm", "OP", 0, 100),
        ("aten::mm", "OP", 100, 200),
        ("cudaLaunchKernel", "RUNTIME", 110, 150),
        ("ncclDevKernel_AllReduce", "KERNEL", 1000, 1500),
        ("Memcpy", "MEMORY", 2000, 2500),
    ]
    assert read.correlation.tolist() == [-1, -1, 77, 77, -1]
    assert [(lane.pid, lane.tid, lane.name) for lane in read.lanes] == [
        ("10", "11", "main"),
        ("3", "7", "[7] stream 7"),
    ]
    assert (read.collectives[3].collective, read.collectives[3].nelems_in) == ("allreduce", 5)
    assert read.nbytes == {4: 4096}
    assert read.facts.damage is None


def test_a_clock_that_each_packet_sets_forward_and_packed_packets_are_read(tmp_path: Path) -> None:
    """So writes Perfetto's own library, in which a program marks its events."""
    builder = TraceProtoBuilder()
    clocks = packet(builder).clock_snapshot
    clocks.clocks.add(clock_id=64, timestamp=5, is_incremental=True, unit_multiplier_ns=1000)
    clocks.clocks.add(clock_id=6, timestamp=5000)
    clocks.clocks.add(clock_id=1, timestamp=AT_NS)
    told = packet(builder).trace_packet_defaults
    told.timestamp_clock_id, told.track_event_defaults.track_uuid = 64, 1
    for kind, later in ((TrackEvent.TYPE_SLICE_BEGIN, 2), (TrackEvent.TYPE_SLICE_END, 3)):
        event = packet(builder, later).track_event
        event.type, event.name = kind, "aten::mm"
        event.categories.append("cpu_op")
    outer = TraceProtoBuilder()
    outer.add_packet().compressed_packets = zlib.compress(builder.serialize())
    (tmp_path / "it.pftrace").write_bytes(outer.serialize())
    read = read_kineto(tmp_path / "it.pftrace")
    assert (read.begin_ns - AT_NS).tolist() == [2000]
    assert (read.end_ns - AT_NS).tolist() == [5000]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b'\n{"traceEvents": []}', False),
        (b"\n[\n{", False),
        (b"\n", False),
        (b"", False),
        (b"\nhello, this is a file of text, not the one that anybody wants", False),
        (by_cupti().serialize(), True),
        (by_cupti().serialize()[:100], True),
    ],
)
def test_a_perfetto_trace_is_known_by_its_content(text: bytes, is_one: bool) -> None:
    assert is_perfetto(text) is is_one


def test_a_trace_of_something_else_is_left_out_and_called_what_it_is(tmp_path: Path) -> None:
    builder = TraceProtoBuilder()
    packet(builder, 5).track_event.name = "a counter of a phone"
    (tmp_path / "phone.pftrace").write_bytes(builder.serialize())
    assert not identify(tmp_path / "phone.pftrace").is_trace
    with pytest.raises(RunDirectoryError, match="is a Perfetto trace without events of torch"):
        find_traces([tmp_path])


def packed_by_zstd(folder: Path) -> Path:
    path = folder / "it.json.zst"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_bytes(zstd.compress(json.dumps({"traceEvents": [event]}).encode()))
    return path


@pytest.mark.parametrize(
    ("made", "module", "extra"),
    [
        (packed_by_zstd, "backports.zstd", "ddptrace[zstd]"),
        (
            lambda folder: made(folder, by_cupti().serialize()),
            "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
            "ddptrace[perfetto]",
        ),
    ],
)
def test_a_missing_package_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], Path], module: str, extra: str
) -> None:
    path = made(tmp_path)
    assert len(read_kineto(path).name) > 0
    monkeypatch.setitem(sys.modules, module, None)
    if sys.version_info >= (3, 14):
        monkeypatch.setitem(sys.modules, "compression.zstd", None)
    for read in (read_kineto, identify):
        with pytest.raises(RunDirectoryError) as refused:
            read(path)
        assert str(refused.value).startswith(f"{path} is ")
        assert str(refused.value).endswith(f"reading it needs pip install '{extra}'")


def made(folder: Path, content: bytes) -> Path:
    path = folder / "it.pftrace"
    path.write_bytes(content)
    return path


def test_any_damage_gives_a_table_or_a_sentence(tmp_path: Path) -> None:
    whole = by_cupti().serialize()
    cut = read_kineto(made(tmp_path, whole[: len(whole) // 2]))
    assert cut.facts.damage is not None
    chance = random.Random(7)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 30))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        del content[chance.choice((len(content), chance.randrange(len(content)))) :]
        path = made(tmp_path, bytes(content))
        for read in (read_kineto, identify):
            with contextlib.suppress(RunDirectoryError):
                read(path)


def test_packets_that_cannot_be_read_are_counted_and_the_others_stand(tmp_path: Path) -> None:
    whole = by_cupti().serialize()
    read = read_kineto(made(tmp_path, whole + b"\n\x03\x0b\x0b\x0b" + b"\n\x02\x92\x03"))
    assert len(read.name) == 5
    assert read.facts.damage == "2 of its events could not be read and are left out"


def test_a_packet_that_unfolds_without_end_is_left_out(tmp_path: Path) -> None:
    builder = TraceProtoBuilder()
    builder.add_packet().compressed_packets = zlib.compress(bytes(80 << 20))
    read = made(tmp_path, builder.serialize() + by_cupti().serialize())
    assert read_kineto(read).facts.damage == "1 of its events could not be read and are left out"


@pytest.mark.parametrize("form", [".json.zst", ".pftrace.zst"])
def test_a_file_that_zstandard_packs_reads_as_it_does_unpacked(shared_traces: Path, tmp_path: Path, form: str) -> None:
    source = shared_traces / "odd" / "cuda_event_sync.json.gz"
    content = as_tracks(source) if form.startswith(".pf") else gzip.decompress(source.read_bytes())
    half = len(content) // 2
    path = tmp_path / f"rank-0{form}"
    path.write_bytes(zstd.compress(content[:half]) + zstd.compress(content[half:]))  # two streams, one behind the other
    assert rows(read_kineto(path)) == rows(read_kineto(source))
    path.write_bytes(path.read_bytes()[:-20])
    assert read_kineto(path).facts.damage is not None
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(200)))
    with pytest.raises(RunDirectoryError, match="Zstandard stream is damaged"):
        read_kineto(path)


def test_a_trace_that_is_there_in_several_forms_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "rank-0.pftrace").write_bytes(by_cupti().serialize())
    packed_by_zstd(tmp_path).rename(tmp_path / "rank-0.json.zst")
    found = find_traces([tmp_path])
    assert [path.name for file in found.files for path in file.paths] == ["rank-0.json.zst"]
    assert [finding.code for finding in found.findings] == ["trace-twice"]
    assert "rank-0.pftrace" in found.findings[0].message


def test_a_trimmed_file_beside_the_whole_one_is_no_further_rank(shared_traces: Path, tmp_path: Path) -> None:
    source = shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz"
    (tmp_path / "rank-34.json.gz").write_bytes(source.read_bytes())
    trimmed = trim(tmp_path / "rank-34.json.gz", 552, 552).place
    assert [file.paths for file in find_traces([tmp_path]).files] == [(tmp_path / "rank-34.json.gz",)]
    (tmp_path / "rank-34.json.gz").unlink()
    assert [file.paths for file in find_traces([tmp_path]).files] == [(trimmed,)]
