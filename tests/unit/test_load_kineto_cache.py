"""The columnar cache: the same columns, and never those of another file or of a damaged cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ddptrace.load.kineto import cache as kineto_cache
from ddptrace.load.kineto.events import KinetoEvents
from ddptrace.load.kineto.reader import read_kineto


def event(number: int) -> dict[str, object]:
    args = {"correlation": number, "Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"k{number}",
        "pid": 0,
        "tid": 7,
        "ts": number * 3,
        "dur": 2,
        "args": args,
    }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": [event(n) for n in range(9)]}))
    return path


def assert_same(one: KinetoEvents, other: KinetoEvents) -> None:
    for name in KinetoEvents.__slots__:
        here, there = getattr(one, name), getattr(other, name)
        if isinstance(here, np.ndarray):
            assert here.dtype == there.dtype and here.tolist() == there.tolist(), name
        else:
            assert here == there, name


def kept(cache: Path, trace: Path) -> KinetoEvents | None:
    return kineto_cache.load(cache, trace, kineto_cache.key_of(trace))


def test_real_columns_come_back_as_they_were(shared_traces: Path, tmp_path: Path) -> None:
    for file in ("ddp-a100/nccl_data.json.gz", "odd/cpu_only_gloo_rank34.pt.trace.json.gz"):
        read = read_kineto(shared_traces / file, tmp_path)
        again = kept(tmp_path, shared_traces / file)
        assert again is not None
        assert_same(read, again)
        assert_same(read, read_kineto(shared_traces / file, tmp_path))


def test_an_empty_trace_and_one_with_damage_come_back_as_they_were(tmp_path: Path) -> None:
    for text in ('{"traceEvents": []}', '{"traceEvents": [%s, 5]}' % json.dumps(event(1))):  # noqa: UP031
        (tmp_path / "a.json").write_text(text)
        assert_same(read_kineto(tmp_path / "a.json", tmp_path / "c"), read_kineto(tmp_path / "a.json", tmp_path / "c"))


def test_an_unchanged_trace_is_answered_from_the_cache(trace: Path, tmp_path: Path) -> None:
    """Proven by columns that only the cache has."""
    other = tmp_path / "other.json"
    other.write_text(json.dumps([event(5)]))
    kineto_cache.store(tmp_path / "cache", trace, kineto_cache.key_of(trace), read_kineto(other))
    assert read_kineto(trace, tmp_path / "cache").names == ("k5",)


@pytest.mark.parametrize("part", kineto_cache.Key.__struct_fields__)
def test_every_part_of_the_key_counts(trace: Path, tmp_path: Path, part: str) -> None:
    key = kineto_cache.key_of(trace)
    kineto_cache.store(tmp_path / "cache", trace, key, read_kineto(trace))
    other = b"other" if part == "edges" else getattr(key, part) + 1
    assert kineto_cache.load(tmp_path / "cache", trace, key) is not None
    assert kineto_cache.load(tmp_path / "cache", trace, msgspec.structs.replace(key, **{part: other})) is None


def test_a_large_trace_that_changed_in_its_middle_and_hides_it_is_read_again(tmp_path: Path) -> None:
    trace, stat = large(tmp_path), (tmp_path / "large.json").stat()
    old = read_kineto(trace, tmp_path / "cache")
    assert_same(old, read_kineto(trace, tmp_path / "cache"))
    edges = kineto_cache.key_of(trace).edges
    with trace.open("r+") as file:
        file.write(trace.read_text().replace('"k1000"', '"q1000"'))  # in place: the same file
    while trace.stat().st_ctime_ns == stat.st_ctime_ns:  # which counts in ticks of the kernel's clock
        os.utime(trace, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.utime(trace, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    now = trace.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    assert kineto_cache.key_of(trace).edges == edges
    assert "q1000" in read_kineto(trace, tmp_path / "cache").names


def test_another_file_in_its_place_has_another_key(trace: Path, tmp_path: Path) -> None:
    key = kineto_cache.key_of(trace)
    (tmp_path / "copy").write_bytes(trace.read_bytes())
    assert key.inode != kineto_cache.key_of(tmp_path / "copy").inode


def large(folder: Path) -> Path:
    trace = folder / "large.json"
    trace.write_text(json.dumps([event(number) for number in range(2000)]))
    assert trace.stat().st_size > 3 * kineto_cache.EDGE_NBYTES
    return trace


def test_a_trace_that_changed_in_size_time_or_content_is_read_again(trace: Path, tmp_path: Path) -> None:
    stat, text = trace.stat(), trace.read_text()
    for content, changed_ns in (
        (text + " ", stat.st_mtime_ns),
        (text, 5),
        (text.replace("k8", "q8"), stat.st_mtime_ns),
    ):
        trace.write_text(text)
        os.utime(trace, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        read_kineto(trace, tmp_path)
        assert kept(tmp_path, trace) is not None
        trace.write_text(content)
        os.utime(trace, ns=(changed_ns, changed_ns))
        assert kept(tmp_path, trace) is None


@pytest.mark.parametrize("end", ["first", "last"])
def test_a_large_trace_is_known_by_both_its_ends(tmp_path: Path, end: str) -> None:
    trace = large(tmp_path)
    events, stat, edges = json.loads(trace.read_text()), trace.stat(), kineto_cache.key_of(trace).edges
    read_kineto(trace, tmp_path / "cache")
    events[0 if end == "first" else -1]["cat"] = "Kernel"  # of the same length
    trace.write_text(json.dumps(events))
    os.utime(trace, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    assert kept(tmp_path / "cache", trace) is None
    assert kineto_cache.key_of(trace).edges != edges


def test_a_cache_of_another_format_is_not_used(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_kineto(trace, tmp_path)
    monkeypatch.setattr(kineto_cache, "FORMAT", kineto_cache.FORMAT + 1)
    assert kept(tmp_path, trace) is None


def test_traces_of_one_name_in_two_folders_have_two_caches(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / trace.name
    other.write_text(json.dumps([event(1)]))
    both = [read_kineto(path, tmp_path / "cache") for path in (trace, other)]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    for path, read in zip((trace, other), both, strict=True):
        assert_same(read, read_kineto(path, tmp_path / "cache"))


def test_a_cache_with_any_byte_flipped_cut_off_or_added_is_ignored(trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read_kineto(trace, cache)
    (place,) = cache.iterdir()
    whole = place.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    cut = [whole[:at] for at in range(0, len(whole), 7)]
    for content in (*flipped, *cut, whole + b"\0", b"garbage", b"\0" * 5000):
        place.write_bytes(content)
        assert kept(cache, trace) is None
    assert len(read_kineto(trace, cache).name) == 9
    assert place.read_bytes() == whole  # and it is mended


Stored = dict[str, Any]


def forge(place: Path, change: Callable[[Stored], None]) -> None:
    """Change what a cache holds, and give it the digest of that: anyone can."""
    content = place.read_bytes()
    head = len(kineto_cache.MAGIC) + kineto_cache.DIGEST_NBYTES
    stored = msgspec.msgpack.decode(gzip.decompress(content[head:]))
    change(stored)
    packed = gzip.compress(msgspec.msgpack.encode(stored))
    digest = hashlib.blake2b(packed, digest_size=kineto_cache.DIGEST_NBYTES).digest()
    place.write_bytes(kineto_cache.MAGIC + digest + packed)


def column(stored: Stored, name: str) -> list[int]:
    kept = stored["columns"][name]
    return np.frombuffer(kept["values"], kept["dtype"]).tolist()  # type: ignore[no-any-return]


def put(stored: Stored, name: str, values: Sequence[complex], dtype: str = "<i8") -> None:
    stored["columns"][name] = {"dtype": dtype, "values": np.array(values, dtype).tobytes()}


def one_other(name: str, value: complex, at: int = 4, dtype: str = "<i8") -> Callable[[Stored], None]:
    """Put another value into one place of a column."""

    def change(stored: Stored) -> None:
        values: list[complex] = [*column(stored, name)]
        values[at] = value
        put(stored, name, values, dtype)

    return change


def one_less(name: str) -> Callable[[Stored], None]:
    return lambda stored: put(stored, name, column(stored, name)[:-1])


def as_type(name: str, dtype: str) -> Callable[[Stored], None]:
    return lambda stored: stored["columns"][name].update(dtype=dtype)


def about_event(at: int) -> Callable[[Stored], None]:
    return lambda stored: stored["collectives"].update({at: stored["collectives"].pop(4)})


COLUMNS = ("category", "name", "lane", "begin", "length", "correlation", "is_collective")
UNSOUND: dict[str, Callable[[Stored], None]] = {
    **{f"{name} is shorter": one_less(name) for name in COLUMNS},
    **{f"{name} is missing": lambda stored, name=name: stored["columns"].pop(name) for name in COLUMNS},  # type: ignore[misc]
    **{f"{name} holds objects": as_type(name, "O") for name in COLUMNS},
    **{f"{name} holds times": as_type(name, "<M8[ns]") for name in COLUMNS},
    **{f"{name} holds not a number": one_other(name, float("nan"), dtype="<f8") for name in COLUMNS},
    **{f"{name} holds complex numbers": one_other(name, 1j, dtype="<c16") for name in COLUMNS},
    "an event ends before it begins": one_other("length", -1),
    "an event begins before the one before it": one_other("begin", -1),
    "the first begin is beyond all clocks": lambda stored: stored.update(first_ns=2**63 - 5),
    "the first begin is after all clocks": lambda stored: stored.update(first_ns=2**62),
    "the first begin is before all clocks": lambda stored: stored.update(first_ns=-(2**62)),
    "a begin is beyond all clocks": one_other("begin", 2**63 - 1),
    "a length is beyond all clocks": one_other("length", 2**63 - 1),
    "a name is not there": one_other("name", 9),
    "a name is negative": one_other("name", -1),
    "a lane is not there": one_other("lane", 1),
    "a lane is negative": one_other("lane", -1),
    "a category is not there": one_other("category", 6),
    "a category is no small number": one_other("category", 256),
    "a correlation is below none": one_other("correlation", -1),
    "a collective is of an event that is not there": about_event(9),
    "a collective is of an event before the first": about_event(-1),
    "there are no names": lambda stored: stored.update(names=()),
    "there are no lanes": lambda stored: stored.update(lanes=()),
}


@pytest.mark.parametrize("how", UNSOUND)
@pytest.mark.filterwarnings("error")
def test_a_forged_cache_with_a_valid_digest_is_ignored(trace: Path, tmp_path: Path, how: str) -> None:
    cache = tmp_path / "cache"
    read = read_kineto(trace, cache)
    (place,) = cache.iterdir()
    forge(place, lambda stored: None)
    assert kept(cache, trace) is not None, "forged without a change, it is as good as the true one"
    forge(place, UNSOUND[how])
    assert kept(cache, trace) is None
    assert_same(read_kineto(trace, cache), read)


def test_a_small_cache_that_unfolds_to_a_flood_is_ignored(trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read_kineto(trace, cache)
    (place,) = cache.iterdir()
    flood_nbytes = 256 << 20
    forge(place, lambda stored: stored.update(unknown=bytes(flood_nbytes)))
    tracemalloc.start()
    try:
        assert kept(cache, trace) is None
        assert tracemalloc.get_traced_memory()[1] < flood_nbytes
    finally:
        tracemalloc.stop()


def test_a_folder_that_cannot_be_written_is_no_error_and_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert len(read_kineto(trace, tmp_path / "file" / "cache").name) == 9
    assert len(read_kineto(trace, tmp_path / "file").name) == 9
    blocked = tmp_path / "blocked"
    read_kineto(trace, blocked)
    (place,) = blocked.iterdir()
    place.unlink()
    place.mkdir()  # a folder where the cache should be
    assert len(read_kineto(trace, blocked).name) == 9
    assert list(blocked.iterdir()) == [place]


def _read_often(trace: Path, cache: Path) -> None:
    for _ in range(20):
        assert len(read_kineto(trace, cache).name) == 9
        for place in cache.iterdir():
            place.unlink(missing_ok=True)


def test_processes_that_write_the_same_cache_do_not_disturb_each_other(trace: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_read_often, args=(trace, tmp_path / "cache")) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert not list((tmp_path / "cache").iterdir())
