"""Reading in pieces: the same events however the file is cut, laid out or broken off, and exact times in bulk."""

from __future__ import annotations

import gzip
import json
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptrace.load.kineto import source as kineto_source
from ddptrace.load.kineto import stream as kineto_stream
from ddptrace.load.kineto.events import FAR_NS, FileFacts, KinetoEvents
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.kineto.stream import Event, EventStream
from ddptrace.load.kineto.text import nanoseconds, time_column

EVENT = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 7, "tid": 7, "ts": %d, "dur": 2}'


def read(folder: Path, content: str | bytes) -> KinetoEvents:
    path = folder / "kineto.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_kineto(path)


def names(events: KinetoEvents) -> list[str]:
    return [events.names[name] for name in events.name]


def texts(*written: str) -> str:
    return ", ".join(EVENT % (name, at) for at, name in enumerate(written, start=1))


NUMBERS = st.one_of(
    st.integers(0, 2 * 10**18).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}"),
    st.integers(-10, 5 * 10**15).map(str),
    st.decimals(0, 10**13, places=2, allow_nan=False).map(str),
    st.sampled_from(["0", "-0", "0.1", "1.0005", "1e3", "-2.5", "9999999999999999", "4611686018427387.904", "1E-4"]),
    st.sampled_from(["null", '"1"', '"1,2"', "[1]", "[1,2]", "true", "{}", "1" * 70, "4999999999999999"]),
)


@given(st.lists(NUMBERS, max_size=12))
def test_times_in_bulk_are_those_of_one_by_one(numbers: list[str]) -> None:
    found, good = time_column([number.encode() for number in numbers])
    expected = [one_time(number) for number in numbers]
    assert [ns if is_good else None for ns, is_good in zip(found.tolist(), good.tolist(), strict=True)] == expected


def one_time(number: str) -> int | None:
    """By fractions, which share nothing with the digits at work."""
    try:
        ns = round(Fraction(number) * 1000)
        nanoseconds(number.encode())
    except ValueError:
        return None
    return ns if -FAR_NS < ns < FAR_NS else None


REAL = [
    "ddp-a100/nccl_data.json.gz",
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "odd/cpu_only_gloo_rank34.pt.trace.json.gz",
    "sampled-2of128/sampled_rank-0.json.gz",
]


@pytest.mark.parametrize("file", REAL)
@pytest.mark.parametrize("batch_nbytes", [3_000, 50_000])
def test_a_real_trace_reads_the_same_in_batches_of_any_size(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch, file: str, batch_nbytes: int
) -> None:
    whole = read_kineto(shared_traces / file)
    monkeypatch.setattr(kineto_stream, "BATCH_NBYTES", batch_nbytes)
    monkeypatch.setattr(kineto_source, "PIECE_NBYTES", batch_nbytes)
    in_batches = read_kineto(shared_traces / file)
    assert (
        in_batches.begin_ns.tolist() == whole.begin_ns.tolist() and in_batches.end_ns.tolist() == whole.end_ns.tolist()
    )
    assert names(in_batches) == names(whole)
    assert in_batches.collectives == whole.collectives and in_batches.lanes == whole.lanes
    assert in_batches.facts == whole.facts


def test_memory_holds_one_batch_at_a_time_however_long_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kineto.json"
    path.write_text('{"traceEvents": [%s]}' % ",\n".join(EVENT % ("a", at) for at in range(80_000)))  # noqa: UP031
    assert path.stat().st_size > 5 * kineto_stream.BATCH_NBYTES
    batches: list[int] = []

    def take(events: list[Event]) -> None:
        batches.append(len(events))

    EventStream(take, batches.clear).read(kineto_source.Source(path))
    assert sum(batches) == 80_000
    assert max(batches) * path.stat().st_size / 80_000 <= kineto_source.PIECE_NBYTES + kineto_stream.BATCH_NBYTES


LAYOUTS = {
    "compact": '{"traceEvents":[%s]}',
    "after other lists": '{"a": [{"traceEvents": [1]}], "b": "\\"traceEvents\\": [", "traceEvents"\n:\n[%s]}',
    "before an object of its name": '{"traceEvents": [%s], "a": {"traceEvents": [5]}}',
    "after an earlier one": '{"traceEvents": [%s], "traceEvents": [%s]}',
    "after one that is no list": '{"traceEvents": 5, "traceEvents": [%s]}',
    "bare": "\n [%s]\n",
    "with a byte order mark": '\ufeff{"traceEvents": [%s]}',
    "NaN before it": '{"a": [NaN, -Infinity, "NaN"], "traceEvents": [%s]}',
    "halves of letters before it": '{"a": "\\ud83d", "traceEvents": [%s]}',
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_events_are_found_wherever_they_stand(tmp_path: Path, layout: str) -> None:
    text = LAYOUTS[layout].replace("%s", texts("void"), LAYOUTS[layout].count("%s") - 1)
    events = read(tmp_path, text.replace("%s", texts("a", "b", "c")))
    assert names(events) == ["a", "b", "c"]
    assert events.facts == FileFacts()


ODD = {
    "NaN in its arguments": (EVENT[:-1] + ', "args": {"est. occupancy": NaN, "b": -inf, "c": nan}}', "e"),
    "half a letter": (EVENT % ("\\ud800%s", 5), "\ufffde"),
    "both halves": (EVENT % ("\\ud83d\\ude00%s", 5), "\U0001f600e"),
    "a backslash and no letter": (EVENT % ("\\\\ud800%s", 5), "\\ud800e"),
    "a line break": (EVENT % ("a\n%s", 5), "a e"),
    "a name of NaN": (EVENT % ("NaN %s", 5) + ', {"a": NaN}', "NaN e"),
    "a number as name": (EVENT.replace('"name": "%s"', '"name": 5%.0s'), "5"),
    "no name": (EVENT.replace('"name": "%s"', '"name": null%.0s'), ""),
    "an id above int64": (
        EVENT[:-1] + ', "id": 18446744073709551999, "args": {"correlation": 18446744073709551999}}',
        "e",
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_event_stands_among_the_others_with_what_can_be_read_of_it(tmp_path: Path, odd: str) -> None:
    text, name = ODD[odd]
    text = text % "e" if text.count("%d") == 0 else text % ("e", 5)
    events = read(tmp_path, '{"traceEvents": [%s, %s, %s]}' % (EVENT % ("a", 1), text, EVENT % ("z", 9)))  # noqa: UP031
    assert names(events) == ["a", name, "z"]
    assert events.facts.damage is None


def test_what_is_no_event_is_counted(tmp_path: Path) -> None:
    events = read(tmp_path, f'{{"traceEvents": [5, {texts("a")}, "x,y", null, [], NaN, {texts("b")}]}}')
    assert names(events) == ["a", "b"]
    assert events.facts.damage == "5 of its events could not be read and are left out"


STREAMS = ["7", '"stream 7"', "-1", "4294967295", '"0x0"', "18446744073709551999", "null"]


def test_threads_and_streams_of_every_spelling_are_lanes_of_their_own(tmp_path: Path) -> None:
    written = [EVENT.replace('"tid": 7', f'"tid": {tid}') % ("a", at) for at, tid in enumerate(STREAMS)]
    events = read(tmp_path, "[" + ",".join(written) + "]")
    assert [events.lanes[lane].tid for lane in events.lane] == [
        "7", "stream 7", "-1", "4294967295", "0x0", "18446744073709551999", "None",
    ]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_file_that_was_cut_short_the_whole_events_before_the_cut_are_kept(tmp_path: Path, packed: bool) -> None:
    whole = f'{{"distributedInfo": {{"rank": 3}}, "traceEvents": [{texts("a", "b", "c")}]}}'.encode()
    cut = whole[: whole.index(b'"c"')]
    events = read(tmp_path, gzip.compress(cut)[:-8] if packed else cut)
    assert names(events) == ["a", "b"]
    assert events.facts.rank == 3
    assert (events.facts.damage or "").startswith("cut short after 2 events; ")


def test_a_real_packed_file_that_was_cut_short_keeps_its_first_events(shared_traces: Path, tmp_path: Path) -> None:
    packed = (shared_traces / "old-format" / "control.json.gz").read_bytes()
    whole, cut = (
        read_kineto(shared_traces / "old-format" / "control.json.gz"),
        read(tmp_path, packed[: len(packed) // 2]),
    )
    assert 20_000 < len(cut.name) < len(whole.name)
    assert np.isin(cut.begin_ns, whole.begin_ns).all()
    assert cut.facts.rank == 3 and "cut short after" in (cut.facts.damage or "")


def test_a_base_is_found_in_an_end_that_is_no_json_any_more(tmp_path: Path) -> None:
    text = '], "baseTimeNanoseconds": 1790857026000000000, "a": tru'
    events = read(tmp_path, '{"traceEvents": [' + texts("a") + text)
    assert events.begin_ns.tolist() == [1790857026000001000]
    assert events.facts.damage == "the text around its events is incomplete"


def test_members_of_a_packed_file_are_read_one_after_the_other_and_zeros_fill_it_up(tmp_path: Path) -> None:
    text = f"[{texts('a', 'b')}]".encode()
    assert names(read(tmp_path, gzip.compress(text[:20]) + gzip.compress(text[20:]) + bytes(70_000))) == ["a", "b"]


def test_an_empty_list_of_events_is_a_trace_without_any_and_undamaged(tmp_path: Path) -> None:
    for text in ('{"traceEvents": []}', "[]", '{"traceEvents": [ ], "distributedInfo": {"rank": 0}}'):
        events = read(tmp_path, text)
        assert len(events.name) == 0 and events.facts.damage is None


def test_events_that_hold_the_begin_of_one_are_not_cut_in_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_stream, "BATCH_NBYTES", 400)
    monkeypatch.setattr(kineto_source, "PIECE_NBYTES", 150)
    nested = [json.loads(EVENT % (f"e{at}", at)) for at in range(50)]
    for event in nested:
        event["args"] = {"list": [dict(event), dict(event)], "text": f",{EVENT}"}
    events = read(tmp_path, json.dumps({"traceEvents": nested}))
    assert names(events) == [f"e{at}" for at in range(50)] and events.facts.damage is None


@pytest.mark.parametrize("piece_nbytes", [*range(1, 40), 97, 150])
def test_no_cut_between_two_pieces_changes_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_nbytes: int
) -> None:
    monkeypatch.setattr(kineto_stream, "BATCH_NBYTES", 1)
    monkeypatch.setattr(kineto_source, "PIECE_NBYTES", piece_nbytes)
    odd = f'12345, "a, \\" ]", true, {texts("b")}, [[], {{}}], 67'
    events = read(tmp_path, f'{{"a": ["traceEvents"], "traceEvents": [{texts("a")}, {odd}], "host_name": "h"}}')
    assert names(events) == ["a", "b"]
    assert events.facts == FileFacts(host="h", damage="5 of its events could not be read and are left out")


# Pieces that another thread makes -------------------------------------------------------------------------------------


def long_file(folder: Path) -> Path:
    path = folder / "long.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (5 * kineto_source.PIECE_NBYTES) + b"]"))
    return path


def test_pieces_made_ahead_are_the_same(tmp_path: Path) -> None:
    path = long_file(tmp_path)
    made = list(kineto_source.Source(path).pieces_ahead())
    assert made == list(kineto_source.Source(path).pieces())
    assert len(made) > 2


def test_an_error_of_the_other_thread_reaches_the_reader(tmp_path: Path) -> None:
    path = long_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))  # the checksum
    with pytest.raises(kineto_source.NotATrace, match="gzip stream is damaged"):
        list(kineto_source.Source(path).pieces_ahead())
    with pytest.raises(FileNotFoundError):
        list(kineto_source.Source(tmp_path / "none.json").pieces_ahead())


def test_the_other_thread_ends_with_a_reader_that_stops_early(tmp_path: Path) -> None:
    threads = threading.active_count()
    pieces = kineto_source.Source(long_file(tmp_path)).pieces_ahead()
    next(pieces)
    pieces.close()
    assert threading.active_count() == threads


def test_without_another_thread_the_reader_makes_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = long_file(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert list(kineto_source.Source(path).pieces_ahead()) == list(kineto_source.Source(path).pieces())
