"""Kineto files as columns: exact times, every age of file, and a sentence for what is broken."""

from __future__ import annotations

import gzip
import json
import os
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto.events import NO_CORRELATION, Category, FileFacts, KinetoEvents
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.kineto.text import nanoseconds

TRACES = Path(os.environ.get("DDPTRACE_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))
NEEDS_TRACES = pytest.mark.skipif(
    not (TRACES / "expected.json").is_file(),
    reason="needs the real traces (set DDPTRACE_TRACES to the folder that holds them)",
)


def written(folder: Path, content: str | bytes, name: str = "kineto.json") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def one_event(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1, "dur": 2} | fields


def read_text(folder: Path, *events: dict[str, Any], **file: Any) -> KinetoEvents:
    return read_kineto(written(folder, json.dumps({"traceEvents": events} | file)))


@given(
    st.decimals(min_value=-(10**17), max_value=10**17, allow_nan=False, allow_infinity=False), st.sampled_from("feg")
)
def test_digits_become_the_nanoseconds_that_exact_decimal_arithmetic_gives(value: Decimal, form: str) -> None:
    text = format(value, form)
    with localcontext(prec=200):
        exact = int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))
    if len(text) <= 64:
        assert nanoseconds(text.encode()) == exact


@given(st.integers(0, 2 * 10**18))
def test_every_nanosecond_since_the_epoch_survives_three_decimals(at_ns: int) -> None:
    assert nanoseconds(f"{at_ns // 1000}.{at_ns % 1000:03d}".encode()) == at_ns


NO_TIMES = [b"", b"nan", b"NaN", b"Infinity", b"1e19", b"1e999999999", b"x", b'"1"', b"1." + b"5" * 70, b"[1]"]


@pytest.mark.parametrize("digits", NO_TIMES)
def test_what_is_no_time_is_refused(digits: bytes) -> None:
    with pytest.raises(ValueError, match="time"):
        nanoseconds(digits)


def test_times_are_unix_nanoseconds_whether_relative_to_a_base_or_not(tmp_path: Path) -> None:
    relative = '{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [%s]}'
    absolute = '{"traceEvents": [%s]}'
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": %s, "dur": %s}'
    by_base = read_kineto(written(tmp_path, relative % (event % ("4393269873509.474", "0.001"))))
    by_epoch = read_kineto(written(tmp_path, absolute % (event % ("1795250295873509.474", "1e-3"))))
    for events in (by_base, by_epoch):
        assert events.begin_ns.tolist() == [1795250295873509474]
        assert events.end_ns.tolist() == [1795250295873509475]


def test_a_bare_list_old_categories_and_ids_of_any_kind_are_read(tmp_path: Path) -> None:
    events = [
        one_event(cat="Operator", tid="4093687616", pid="main"),
        one_event(cat="Kernel", ts=5, tid="stream 7", args={"correlation": 2**70, "stream": -1}),
        one_event(cat="Memcpy", ts=6, tid=7.0, args={"correlation": "0x10"}),
        one_event(cat="Runtime", ts=4, args={"correlation": 3}),
        one_event(cat="python_function", ts=2, dur=9),
        one_event(cat=None),
        {"ph": "i", "name": "no duration", "ts": 1},
    ]
    read = read_kineto(written(tmp_path, json.dumps(events)))
    kinds = [Category.OP, Category.FRAME, Category.RUNTIME, Category.KERNEL, Category.MEMORY]
    assert read.category.tolist() == kinds
    assert read.correlation.tolist() == [NO_CORRELATION, NO_CORRELATION, 3, NO_CORRELATION, 16]
    assert [read.lanes[lane].tid for lane in read.lane] == ["4093687616", "7", "7", "stream 7", "7"]
    assert read.on_device


def test_events_come_in_order_of_their_begin_with_the_names_of_their_threads(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 9, "args": {"name": "thread 9 (pt_gloo_runloop)"}}
    read = read_text(tmp_path, one_event(ts=5), name, one_event(ts=3, tid=9, name="b"), distributedInfo={"rank": 4})
    assert [read.names[i] for i in read.name] == ["b", "aten::mm"]
    assert [read.lanes[i].name for i in read.lane] == ["thread 9 (pt_gloo_runloop)", ""]
    assert read.facts == FileFacts(rank=4)
    assert not read.on_device


def test_a_name_that_is_not_utf8_costs_its_letters_only(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [one_event(name="caf?")]}).encode().replace(b"?", b"\xe9")
    assert read_kineto(written(tmp_path, text)).names == ("caf\ufffd",)


def test_a_packed_file_is_known_by_its_content(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"traceEvents": [one_event()]}).encode())
    assert len(read_kineto(written(tmp_path, packed)).name) == 1


BROKEN = {
    "empty": b"",
    "blank": b" \n",
    "garbage": b"\x00\x01\x02",
    "a text": b"hello",
    "another object": b"{}",
    "no list": b'{"traceEvents": {"a": []}}',
    "cut in the first event": b'{"traceEvents": [{"ph": "X"',
    "deep": b"[" * 100_000,
    "deep in what is not read": b'{"traceEvents": [], "other": ' + b"[" * 100_000,
    "a cut packed file": gzip.compress(b'{"traceEvents": []}')[:-9],
    "a packed file of nothing": gzip.compress(b""),
    "a packed file with a wrong checksum": gzip.compress(b'{"traceEvents": []}')[:-8] + b"\0" * 8,
    "a packed file and something else": gzip.compress(b'{"traceEvents": []}') + b"else",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_in_one_sentence_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RunDirectoryError) as refused:
        read_kineto(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"none\.json cannot be read \(No such file or directory\)"):
        read_kineto(tmp_path / "none.json")


UNREADABLE = {
    "NaN as a time": '"ts": NaN, "dur": 1',
    "no time": '"dur": 1',
    "no duration": '"ts": 1',
    "null as a time": '"ts": null, "dur": 1',
    "a text as time": '"ts": "1", "dur": 1',
    "a far time": '"ts": 1e18, "dur": 1',
    "a far end": '"ts": 4611686018427387, "dur": 1',
    "a time of many digits": '"ts": 1%s, "dur": 1' % ("0" * 60),
    "a list as name": '"ts": 1, "dur": 1, "name": []',
    "a number as category": '"ts": 1, "dur": 1, "cat": 5',
    "a flag as thread": '"ts": 1, "dur": 1, "tid": true',
    "a text as arguments": '"ts": 1, "dur": 1, "args": "a"',
    "deep arguments": '"ts": 1, "dur": 1, "args": {"a": ' + "[" * 90_000 + "]" * 90_000 + "}",
}


@pytest.mark.parametrize("fields", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_event_that_cannot_be_read_is_left_out_and_counted_and_the_others_stand(tmp_path: Path, fields: str) -> None:
    whole = '{"ph": "X", "cat": "kernel", "name": "b", "ts": 3, "dur": 1}'
    odd = '{"ph": "X", "cat": "kernel", ' + fields + "}"
    read = read_kineto(written(tmp_path, f'{{"traceEvents": [{odd}, {whole}]}}'))
    assert read.begin_ns.tolist() == [3000]
    assert read.facts.damage == "1 of its events could not be read and are left out"


WHOLE = json.dumps(
    {
        "baseTimeNanoseconds": 1790857026000000000,
        "distributedInfo": {"rank": 0},
        "traceEvents": [
            one_event(ts=4393269873509.474, args={"External id": 3}),
            one_event(
                cat="kernel", name="ncclDevKernel_AllReduce", args={"correlation": 5, "Collective name": "allreduce"}
            ),
            one_event(cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 5}),
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "main"}},
        ],
    }
).encode()


FLIPS = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=3)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FLIPS, st.integers(0, len(WHOLE)), st.booleans())
def test_damage_gives_a_table_or_a_sentence(
    tmp_path: Path, flips: list[tuple[int, int]], cut: int, packed: bool
) -> None:
    damaged = bytearray(gzip.compress(WHOLE, 1, mtime=0) if packed else WHOLE)
    for at, value in flips:
        damaged[at % len(damaged)] = value
    if cut % 2:
        del damaged[cut:]
    path = written(tmp_path, bytes(damaged))
    try:
        events = read_kineto(path)
    except RunDirectoryError:
        return
    assert len(events.begin_ns) == len(events.name) <= 4


@NEEDS_TRACES
def test_every_odd_real_trace_gives_a_table() -> None:
    files = sorted((TRACES / "odd").glob("*.json.gz"))
    assert files
    for file in files:
        assert len(read_kineto(file).name) > 0
