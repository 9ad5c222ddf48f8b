"""The recorder and its reader: nothing that was written is lost, whatever happens around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ddptrace.record import Recorder, RecordReader
from ddptrace.record.segment import SEGMENT_NBYTES
from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, TEXT_PER_RECORD, Kind

PER_SEGMENT = SEGMENT_NBYTES // RECORD_NBYTES - 1


def recorder_in(folder: Path) -> Recorder:
    return Recorder(lambda: folder)


def numbers(reader: RecordReader, *, live: bool = False) -> list[int]:
    events = reader.read(live=live).events
    return [int(n) for n in events["a"][events["kind"] == Kind.DONE]]


def test_records_come_back_as_written_over_several_segments(tmp_path: Path) -> None:
    recorder, count = recorder_in(tmp_path), 2 * PER_SEGMENT + 1000
    for number in range(count):
        recorder.event(Kind.DONE, 0, 0, number, number, number)
        if number % PER_SEGMENT == PER_SEGMENT // 2:
            wait_for_spare(recorder)
    recorder.close()
    records = RecordReader(tmp_path).read()
    done = records.events[records.events["kind"] == Kind.DONE]
    assert done["a"].tolist() == list(range(count))
    assert (records.closed, records.dropped, records.torn, records.damaged) == (True, 0, 0, ())
    assert len(list(tmp_path.glob("records-*.bin"))) == 3


def test_many_threads_lose_nothing_and_keep_their_numbers_apart(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)

    def write(first: int) -> None:
        for number in range(first, first + 5000):
            recorder.event(Kind.DONE, 0, 0, 1, 1, number)

    threads = [threading.Thread(target=write, args=(5000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    records = RecordReader(tmp_path).read()
    done = records.events[records.events["kind"] == Kind.DONE]
    assert sorted(done["a"].tolist()) == list(range(40_000))
    assert len(np.unique(done["thread"])) == 8


def test_strings_of_every_length_come_back_and_are_written_once(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    texts = ["", "a", "x" * TEXT_PER_RECORD, "y" * (TEXT_PER_RECORD + 1), "ü" * 100_000, "\udcff broken", "\0"]
    ids = [recorder.intern(text) for text in texts]
    assert [recorder.intern(text) for text in texts] == ids
    recorder.close()
    strings = RecordReader(tmp_path).read().strings
    assert [strings[number] for number in ids] == [text.encode("utf-8", "replace").decode() for text in texts]


def test_a_value_out_of_its_fields_range_costs_that_record_alone_and_is_counted(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 1)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 2**70)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 3)
    recorder.close()
    assert numbers(RecordReader(tmp_path)) == [1, 3]
    assert RecordReader(tmp_path).read().dropped == 1


def test_a_reader_that_follows_gets_each_record_once_also_past_a_hole_and_a_new_segment(tmp_path: Path) -> None:
    recorder, reader, seen = recorder_in(tmp_path), RecordReader(tmp_path), []
    for number in range(PER_SEGMENT + 500):
        value = 2**70 if number == 100 else number  # leaves a hole that is never filled
        recorder.event(Kind.DONE, 0, 0, 1, 1, value)
        if number % 997 == 0:
            seen += numbers(reader, live=True)
        if number == PER_SEGMENT // 2:
            wait_for_spare(recorder)
    recorder.close()
    seen += numbers(reader)
    assert seen == [number for number in range(PER_SEGMENT + 500) if number != 100]


def test_so_many_finished_files_are_read_at_a_time_and_that_there_are_more_is_said(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    for number in range(5 * PER_SEGMENT // 2):
        recorder.event(Kind.DONE, 0, 0, 1, 1, number)
        if number % PER_SEGMENT == PER_SEGMENT - 1:
            wait_for_spare(recorder)
    recorder.close()
    reader, reads = RecordReader(tmp_path), []
    while not reads or reads[-1].behind:
        reads.append(reader.read(live=True, segments=1))
    per_read = [int((read.events["kind"] == Kind.DONE).sum()) for read in reads]
    assert len(per_read) == 3
    assert max(per_read) <= PER_SEGMENT
    assert sum(per_read) == 5 * PER_SEGMENT // 2


def test_many_holes_hold_a_reader_up_for_one_look_only(tmp_path: Path) -> None:
    recorder, reader = recorder_in(tmp_path), RecordReader(tmp_path)
    for number in range(100):
        recorder.event(Kind.DONE, 0, 0, 1, 1, 2**70 if number % 2 else number)
    first, second = numbers(reader, live=True), numbers(reader, live=True)
    assert first == [0]
    assert second == list(range(2, 100, 2))
    recorder.close()
    assert numbers(reader) == []


def test_a_slot_that_was_passed_over_is_read_once_it_is_written(tmp_path: Path) -> None:
    recorder, reader = recorder_in(tmp_path), RecordReader(tmp_path)
    segment = recorder.segment
    assert segment is not None
    offset = next(segment.offsets)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 1)
    seen = [numbers(reader, live=True) for _ in range(3)]
    assert seen == [[], [1], []]
    EVENT.pack_into(segment.view, offset, Kind.DONE, 0, 1, 0, 1, 1, 77, 0, 0, 0, 0, 0, 0, GUARD)
    assert [numbers(reader, live=True) for _ in range(2)] == [[77], []]
    recorder.close()
    assert numbers(reader) == []


def test_what_lies_in_the_next_file_is_not_read_before_what_was_written_earlier(tmp_path: Path) -> None:
    recorder, reader = recorder_in(tmp_path), RecordReader(tmp_path)
    # GIVEN a slot of the first file that is not written yet when the second one is begun
    segment = recorder.segment
    assert segment is not None
    while (offset := next(segment.offsets)) < segment.room - 2 * RECORD_NBYTES:
        EVENT.pack_into(segment.view, offset, Kind.DONE, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, GUARD)
    wait_for_spare(recorder)
    recorder._seal_retired = lambda: None  # type: ignore[method-assign]  # the moment before it is sealed, made to last
    recorder.event(Kind.DONE, 0, 0, 1, 1, 2)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 3)
    assert {path.name for path in tmp_path.glob("records-*.bin")} >= {"records-00000.bin", "records-00001.bin"}
    assert 3 not in numbers(reader, live=True)
    EVENT.pack_into(segment.view, offset, Kind.DONE, 0, 1, 0, 1, 1, 77, 0, 0, 0, 0, 0, 0, GUARD)
    assert numbers(reader, live=True) == [77, 2, 3]
    recorder.close()


def test_what_was_recorded_before_a_kill_is_there_afterwards(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from ddptrace.record import Recorder\n"
        "recorder = Recorder(lambda: Path(sys.argv[1]))\n"
        "for number in range(1000): recorder.event(4, 0, 0, 1, 1, number)\n"
        "print('written', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert numbers(RecordReader(tmp_path)) == list(range(1000))
    assert not RecordReader(tmp_path).read().closed


def test_after_closing_records_are_taken_no_more_and_nothing_is_raised(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.event(Kind.DONE, 0, 0, 1, 1, 1)
    recorder.close()
    recorder.event(Kind.DONE, 0, 0, 1, 1, 2)
    recorder.intern("late")
    assert numbers(RecordReader(tmp_path)) == [1]


def test_unix_time_is_tied_to_the_monotonic_clock_within_microseconds(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.close()
    events = RecordReader(tmp_path).read().events
    pairs = events[events["kind"] == Kind.CLOCK]
    assert len(pairs) >= 2
    offset = time.time_ns() - time.perf_counter_ns()
    for pair in pairs:
        assert int(pair["a"] - pair["begin"]) == pytest.approx(offset, abs=1_000_000)
        assert 0 <= pair["b"] < 1_000_000


def wait_for_spare(recorder: Recorder) -> None:
    """A test writes faster than any training: give the keeper its moment."""
    deadline = time.monotonic() + 10
    while recorder._spare is None and time.monotonic() < deadline:
        time.sleep(0.01)
