"""Where there is no room for more records: the keeper rests, names come back, and nobody is cut off while writing."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from pathlib import Path

import pytest

from ddptrace.record import Recorder, RecordReader
from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, Kind, segment_name
from tests.unit.kept_records import SMALL, give_way, recorder_in, settled, train


def fill(recorder: Recorder) -> None:
    """Until a record is lost."""
    while not recorder.dropped:
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_without_room_the_keeper_rests_and_only_the_records_of_training_count_as_lost(tmp_path: Path) -> None:
    # GIVEN a run folder that somebody removed
    folder, rounds = tmp_path / "rank", [0]
    folder.mkdir()

    def count() -> None:
        rounds[0] += 1

    recorder = Recorder(lambda: folder, chores=count, keep=SMALL)
    shutil.rmtree(folder)
    fill(recorder)
    settled(recorder)
    # WHEN training goes on for a second
    before, rounds[0], lost = recorder.dropped, 0, 500
    clock = time.pthread_getcpuclockid(recorder._keeper.ident)  # type: ignore[arg-type]
    begin_s = time.clock_gettime(clock)
    for _ in range(lost):
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)
        time.sleep(0.002)
    settled(recorder)
    # THEN
    assert recorder.dropped == before + lost
    assert rounds[0] <= 5  # each takes 2 s
    assert time.clock_gettime(clock) - begin_s < 0.1
    recorder.close()


def test_whatever_fails_in_a_chore_the_keeper_goes_on_and_says_so_once(tmp_path: Path) -> None:
    rounds = [0]

    def chore() -> None:
        rounds[0] += 1
        raise LookupError("planted")

    recorder = Recorder(lambda: tmp_path, chores=chore, keep=SMALL)
    for wanted in (1, 2, 3):
        recorder.nudge()
        deadline = time.monotonic() + 20
        while rounds[0] < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
    assert rounds[0] >= 3 and recorder._keeper.is_alive()
    recorder.close()
    records = RecordReader(tmp_path).read()
    told = [text for text in records.strings.values() if "keeper-failed" in text]
    assert len(told) == 1 and "LookupError: planted" in told[0]


def test_a_segment_that_somebody_emptied_does_not_stop_the_letting_go(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    train(recorder, 0, 1000)
    settled(recorder)
    (tmp_path / segment_name(recorder._store._sealed[0].index)).write_bytes(b"")
    train(recorder, 1000, 10_000)
    recorder.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= SMALL.nbytes
    records = RecordReader(tmp_path).read()
    steps = records.events["a"][records.events["kind"] == Kind.STEP]
    assert steps.max() == 9_999 and not any("keeper-failed" in text for text in records.strings.values())


def test_a_name_that_was_lost_is_written_once_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path)
    early = recorder.intern("early")
    with monkeypatch.context() as patched:
        patched.setattr(recorder._store, "make", no_room)
        fill(recorder)
        lost = recorder.intern("late")
        assert recorder.intern("late") == lost
    settled(recorder)
    give_way(recorder)
    ids = [recorder.intern(name) for name in ("early", "late", "later")]
    assert ids[:2] == [early, lost] and len(set(ids)) == 3
    recorder.close()
    strings = RecordReader(tmp_path).read().strings
    assert [strings.get(number) for number in ids] == ["early", "late", "later"]


def test_a_thread_that_holds_a_slot_of_a_full_segment_still_fills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptrace.record.recorder.GRACE_S", 1.0)
    recorder = recorder_in(tmp_path)
    segment = recorder._segment
    assert segment is not None
    # GIVEN a thread that took a slot, and was made to wait before it wrote
    offset = next(segment.offsets)

    def write_late() -> None:
        EVENT.pack_into(segment.view, offset, Kind.DONE, 0, 0, 0, 1, 1, 77, 0, 0, 0, 0, 0, 0, GUARD)

    for _ in range(segment.room // RECORD_NBYTES + 10):
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)
    assert recorder._segment is not segment
    late = threading.Timer(0.1, write_late)
    late.start()
    late.join()
    time.sleep(1.5)
    recorder.close()
    records = RecordReader(tmp_path).read()
    assert (records.events["a"][records.events["kind"] == Kind.DONE] == 77).sum() == 1
    assert not records.damaged
