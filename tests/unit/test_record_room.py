"""Where there is no room for more records: the keeper rests, names come back, and nobody is cut off while writing."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from ddptrace.findings import NOT_SETTLED
from ddptrace.load.records.rank_run import Recorded, dropped_words, rank_run
from ddptrace.record import Recorder, RecordReader, Records
from ddptrace.record.store import THINNING
from ddptrace.schema import EVENT, GUARD, RECORD_NBYTES, Kind, segment_name
from tests.unit.kept_records import SMALL, give_way, recorder_in, settled, train


def fill(recorder: Recorder) -> None:
    """Until a record is lost."""
    while not recorder.dropped.total:
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def loaded(folder: Path) -> Recorded:
    return rank_run(RecordReader(folder).read(), {}, rank=0, zero_unix_ns=None)


def messages(recorded: Recorded, code: str) -> list[str]:
    return [finding.message for finding in recorded.findings if finding.code == code]


def test_without_room_the_keeper_rests_and_only_the_records_of_training_count_as_lost(tmp_path: Path) -> None:
    # GIVEN a run folder that somebody removed
    folder, rounds = tmp_path / "rank", [0]
    folder.mkdir()

    def count() -> None:
        rounds[0] += 1

    recorder = Recorder(lambda: folder, chores=[count], keep=SMALL)
    shutil.rmtree(folder)
    fill(recorder)
    settled(recorder)
    # WHEN training goes on for a second
    before, rounds[0], lost = recorder.dropped.total, 0, 500
    clock = time.pthread_getcpuclockid(recorder._keeper.ident)  # type: ignore[arg-type]
    begin_s = time.clock_gettime(clock)
    for _ in range(lost):
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)
        time.sleep(0.002)
    settled(recorder)
    # THEN
    assert recorder.dropped.total == before + lost
    assert rounds[0] <= 5  # each takes 2 s
    assert time.clock_gettime(clock) - begin_s < 0.1
    recorder.close()


def test_whatever_fails_in_a_chore_the_keeper_goes_on_and_says_so_once(tmp_path: Path) -> None:
    rounds = [0]

    def chore() -> None:
        rounds[0] += 1
        raise LookupError("planted")

    recorder = Recorder(lambda: tmp_path, chores=[chore], keep=SMALL)
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


def test_what_was_lost_in_a_burst_and_what_for_want_of_room_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("burst", "short")]
    for folder in folders:
        folder.mkdir()
    burst, short = map(recorder_in, folders)
    # GIVEN a rank whose next file takes a moment, and one that gets none
    make = burst._store.make
    with monkeypatch.context() as patched:
        patched.setattr(burst._store, "make", lambda unpaired: (time.sleep(0.5), make(unpaired))[1])
        patched.setattr(short._store, "make", no_room)
        fill(burst)
        fill(short)
        settled(short)
        for _ in range(100):
            short.event(Kind.DONE, 0, 0, 1, 1, 0)
        give_way(burst)
    for recorder in (burst, short):
        recorder.close()
    # THEN
    (said,) = messages(loaded(folders[0]), "records-dropped")
    assert said.startswith(f"{burst.dropped.total} records were lost in bursts") and "ddptrace.Keep(nbytes=" in said
    told = messages(loaded(folders[1]), "records-dropped")
    assert short.dropped.without_room >= 100 and short.dropped.in_bursts <= 1
    assert told[0].startswith(f"{short.dropped.without_room} records were lost, since there was no room")
    assert "free some of the disk" in told[0]


def test_of_a_run_before_the_reasons_were_told_both_are_named() -> None:
    (said,) = dropped_words(Records(dropped=3))
    assert said == "3 records could not be written (values out of range; in runs before schema 1.4, no room)"


def test_what_describes_the_run_and_found_no_room_is_written_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path)
    natives = []

    def work() -> None:
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)
        natives.append(threading.get_native_id())

    with monkeypatch.context() as patched:
        patched.setattr(recorder._store, "make", no_room)
        fill(recorder)
        settled(recorder)
        # GIVEN a group, a reducer, a note, a profiler file and a thread that are met without room
        group = {"name": "late", "ranks": [1, 0], "backend": "gloo", "threads": 2}
        recorder.describe(Kind.GROUP, json.dumps(group), begin=5)
        recorder.describe(Kind.REDUCER, json.dumps({"reducer": 3, "kind": "ddp", "names": ["x" * 5000]}))
        recorder.note(NOT_SETTLED, "something")
        recorder.window("kineto-0.json.gz", 7, 9, by_user=False)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    settled(recorder)
    give_way(recorder)
    recorder.close()
    # THEN
    records = RecordReader(tmp_path).read()
    found = loaded(tmp_path)
    assert [(one.name, one.ranks) for one in found.run.groups] == [("late", (1, 0))]
    assert messages(found, NOT_SETTLED.code) == ["something"]
    assert [one.file for one in found.windows] == ["kineto-0.json.gz"]
    kinds, numbers = records.events["kind"], records.events["a"]
    assert natives[0] in numbers[kinds == Kind.THREAD].tolist()
    (told,) = [records.strings[int(number)] for number in records.events["name"][kinds == Kind.REDUCER]]
    assert json.loads(told)["names"] == ["x" * 5000]


def test_a_profiler_file_that_went_while_there_was_no_room_for_a_word_is_still_told_to_have_been_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_in(tmp_path)
    for number in range(2):
        (tmp_path / f"kineto-{number}.json.gz").write_bytes(bytes(1000))
        recorder.window(f"kineto-{number}.json.gz", 7, 9, by_user=False)
    with monkeypatch.context() as patched:
        patched.setattr(recorder._store, "make", no_room)
        fill(recorder)
        settled(recorder)
        recorder._store.windows.drop_oldest()
    settled(recorder)
    give_way(recorder)
    recorder.close()
    found = loaded(tmp_path)
    assert (found.files_let_go, [one.file for one in found.windows]) == (1, ["kineto-1.json.gz"])


def test_on_a_full_disk_what_describes_goes_too_rather_than_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk that takes nothing beside the files which are there
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == THINNING:
            no_room()
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    recorder = recorder_in(tmp_path)
    # WHEN models are made without end, of whose descriptions more might stay than one file holds
    for number in range(3000):
        recorder.describe(Kind.REDUCER, json.dumps({"reducer": number, "names": ["x" * 1500]}))
        if number % 50 == 0:
            give_way(recorder)
            assert recorder._spare is not None
    recorder.close()
    # THEN
    records = RecordReader(tmp_path).read()
    assert recorder.dropped.total == 0 and not records.damaged
    names = records.events["name"][records.events["kind"] == Kind.REDUCER]
    numbers = [json.loads(records.strings[int(name)])["reducer"] for name in names]
    assert numbers == list(range(numbers[0], 3000)) and numbers[0] > 0
    assert messages(loaded(tmp_path), "descriptions-let-go")[0].startswith(f"{numbers[0]} descriptions")


def test_windows_before_one_that_was_let_go_were_let_go_as_well(tmp_path: Path) -> None:
    # GIVEN a process that ended before it could say so of the first
    recorder = recorder_in(tmp_path)
    for number in range(3):
        (tmp_path / f"kineto-{number}.json.gz").write_bytes(bytes(1000))
        recorder.window(f"kineto-{number}.json.gz", 7, 9, by_user=False)
    tell, recorder._store.windows._tell_gone = recorder._store.windows._tell_gone, lambda *_: None
    recorder._store.windows.drop_oldest()
    recorder._store.windows._tell_gone = tell
    recorder._store.windows.drop_oldest()
    recorder.close()
    found = loaded(tmp_path)
    assert (found.files_let_go, [one.file for one in found.windows]) == (2, ["kineto-2.json.gz"])


def test_what_is_lent_is_a_small_part_of_a_segment_and_takes_no_slot_otherwise(tmp_path: Path) -> None:
    """A segment that is lent is not finished before it is given back, however many follow."""
    recorder = recorder_in(tmp_path)
    segment = recorder.segment
    assert segment is not None and recorder.lend(segment.room // RECORD_NBYTES, "too many") is None
    at = next(segment.offsets)
    stretch = recorder.lend(10, "mine")
    assert stretch is not None and (stretch.segment, stretch.offset) == (segment, at + RECORD_NBYTES)
    assert recorder.lend(10, "mine", stretch) is stretch and recorder.lend(9, "mine", stretch) is not stretch
    while recorder.segment is segment:
        recorder.event(Kind.DONE, 0, 0, 1, 1, 0)
    recorder.nudge()
    time.sleep(0.2)
    assert recorder.lend(10, "others", stretch) is not stretch and segment.view[:1]
    segment.lent_to.clear()
    recorder.close()
    assert not RecordReader(tmp_path).read().damaged
    with pytest.raises(ValueError, match="closed"):
        segment.view[:1]
