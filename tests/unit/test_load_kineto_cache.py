"""The columnar cache: the same columns, and never those of another file or of a damaged cache."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

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
