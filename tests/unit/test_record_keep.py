"""What is kept of records that never end: the folder keeps to its bound, what describes stays, the rest is counted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ddptrace.errors import DdptraceError
from ddptrace.findings import NOT_SETTLED
from ddptrace.record import RecordReader, Records
from ddptrace.schema import Kind, Phase, segment_index
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.unit.kept_records import PER_STEP, describe, give_way, recorder_in, settled, train


def folder_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def steps_of(records: Records) -> list[int]:
    return [int(n) for n in records.events["a"][records.events["kind"] == Kind.STEP]]


def clocks_of(records: Records) -> NDArray[np.void]:
    found: NDArray[np.void] = records.events[records.events["kind"] == Kind.CLOCK]
    return found


def marks(records: Records) -> Iterator[tuple[int, int, int]]:
    """Group (0: all), records, and of these those that are paired, of each LET_GO record but the sums."""
    events = records.events
    for row in events[(events["kind"] == Kind.LET_GO) & (events["flags"] == 0)]:
        yield int(row["d"]), int(row["a"]), int(row["b"])


def assert_counted_in_place(records: Records) -> None:
    """`train` numbers calls from 1: each that is left comes after so many that are left or counted before it."""
    group = next(number for number, text in records.strings.items() if text == "0")
    before = 0
    for row in records.events:
        if row["kind"] == Kind.CALL:
            before += 1
            assert row["a"] == before
        elif row["kind"] == Kind.LET_GO and row["d"] == group:
            before += int(row["a"])


def test_the_folder_stays_within_its_bound_and_the_newest_records_are_there(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    describe(recorder)
    largest = 0
    for first in range(0, 15_000, 500):
        train(recorder, first, first + 500)
        largest = max(largest, folder_nbytes(tmp_path))
    recorder.close()
    assert 15_000 * PER_STEP * 64 > 2 * LEAST_NBYTES, "the program no longer writes more than is kept"
    assert largest <= LEAST_NBYTES
    records = RecordReader(tmp_path).read()
    steps = steps_of(records)
    assert steps == list(range(steps[0], 15_000))
    assert 0 < steps[0] < 13_000
    assert (records.closed, records.dropped, records.torn, records.damaged) == (True, 0, 0, ())


def test_what_describes_the_run_outlives_the_records_that_stood_beside_it(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    describe(recorder)
    recorder.note(NOT_SETTLED, "something early")
    train(recorder, 0, 12_000)
    recorder.close()
    records = RecordReader(tmp_path).read()
    told = {
        kind: [records.strings[int(n)] for n in records.events["name"][records.events["kind"] == kind]]
        for kind in (Kind.GROUP, Kind.REDUCER, Kind.NOTE)
    }
    assert told[Kind.GROUP] == [json.dumps({"name": "0"})]
    assert told[Kind.REDUCER] == [json.dumps({"reducer": 0, "names": ["x" * 500]})]
    assert ["something early" in text for text in told[Kind.NOTE]] == [True]
    calls = records.events[records.events["kind"] == Kind.CALL]
    assert {records.strings[int(n)] for n in np.unique(calls["name"])} == {"all_reduce", "send"}


def test_every_call_is_there_or_counted_by_its_group(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    train(recorder, 0, 12_000)
    recorder.close()
    records = RecordReader(tmp_path).read()
    calls = records.events[records.events["kind"] == Kind.CALL]
    group = next(number for number, text in records.strings.items() if text == "0")
    ((_, gone, paired),) = [mark for mark in marks(records) if mark[0] == group]
    assert gone + len(calls) == 12_000 * 11
    assert paired == gone - gone // 11  # ten of eleven: the calls that are left begin with whichever
    assert int(calls["a"].min()) == gone + 1


def test_the_first_clock_stays_since_all_times_rest_on_it(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    first = clocks_of(RecordReader(tmp_path).read(live=True))[0].tobytes()
    train(recorder, 0, 12_000)
    recorder.close()
    assert clocks_of(RecordReader(tmp_path).read())[0].tobytes() == first


def test_of_what_counts_from_the_start_the_last_of_each_stays(tmp_path: Path) -> None:
    """The rest of what the host did to the rank goes with the steps, and is counted."""
    recorder = recorder_in(tmp_path)
    pairs = [recorder.intern(f"10.0.0.1>10.0.0.{k}") for k in (2, 3)]
    for count in range(1, 6):
        for pair in pairs:
            recorder.event(Kind.LINK, 0, pair, count, count, count)
        recorder.event(Kind.CGROUP, 0, 0, count, count, 10 * count, 0, 10**9)
        for kind in (Kind.HOST, Kind.GC, Kind.PULSE):
            recorder.event(kind, 0, 0, count, count, 1)
    train(recorder, 0, 5_000)
    recorder.event(Kind.LINK, 0, pairs[1], 6, 6, 6)
    train(recorder, 5_000, 20_000)
    settled(recorder)
    recorder.close()
    records = RecordReader(tmp_path).read()
    events = records.events
    left = events[np.isin(events["kind"], (Kind.LINK, Kind.CGROUP))]
    assert sorted(zip(left["kind"].tolist(), left["name"].tolist(), left["a"].tolist(), strict=True)) == [
        (Kind.CGROUP, 0, 50), (Kind.LINK, pairs[0], 5), (Kind.LINK, pairs[1], 6)
    ]  # fmt: skip
    assert not np.isin(events["kind"], (Kind.HOST, Kind.GC, Kind.PULSE)).any()
    assert sum(count for group, count, _ in marks(records) if not group) > 15
    assert folder_nbytes(tmp_path) <= LEAST_NBYTES


def test_the_last_steps_are_kept_and_not_much_more(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, Keep(nbytes=LEAST_NBYTES, steps=700))
    train(recorder, 0, 4_000)
    settled(recorder)
    recorder.close()
    steps = steps_of(RecordReader(tmp_path).read())
    per_segment = recorder._store.segment_nbytes // (PER_STEP * 64)
    assert steps == list(range(steps[0], 4_000))
    assert 700 <= len(steps) <= 700 + 4 * per_segment  # those being filled, the one beside them, and a part


def test_a_reader_that_comes_while_records_are_let_go_sees_whole_steps_in_order(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    for first in range(0, 12_000, 1000):
        train(recorder, first, first + 1000)
        records = RecordReader(tmp_path).read(live=True)
        steps = steps_of(records)
        assert steps == list(range(steps[0], first + 1000))
        assert not records.damaged
    recorder.close()


def test_a_reader_that_follows_closely_gets_each_record_once(tmp_path: Path) -> None:
    recorder, reader = recorder_in(tmp_path), RecordReader(tmp_path)
    seen: list[int] = []
    for first in range(0, 12_000, 200):
        train(recorder, first, first + 200)
        records = reader.read(live=True)
        assert not records.missed
        seen += steps_of(records)
    recorder.close()
    last = reader.read()
    assert not last.missed
    assert seen + steps_of(last) == list(range(12_000))


def test_a_reader_that_was_left_behind_is_told_so(tmp_path: Path) -> None:
    recorder, reader = recorder_in(tmp_path), RecordReader(tmp_path)
    train(recorder, 0, 100)
    assert not reader.read(live=True).missed
    train(recorder, 100, 12_000)
    recorder.close()
    assert reader.read().missed


KILLED = """
import sys, time
from pathlib import Path
from ddptrace.trace_options import Keep, LEAST_NBYTES
from ddptrace.record import Recorder
from tests.unit.kept_records import describe, train
recorder = Recorder(lambda: Path(sys.argv[1]), keep=Keep(nbytes=LEAST_NBYTES))
describe(recorder)
print("begun", flush=True)
for first in range(0, 10_000_000, 100):
    train(recorder, first, first + 100)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_leaves_whole_steps_and_every_call_counted(tmp_path: Path, seed: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.readline()
    while not any(segment_index(path.name) > 20 for path in tmp_path.iterdir()):  # it has begun to let go
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(random.Random(seed).random() / 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    records = RecordReader(tmp_path).read()
    steps = steps_of(records)
    assert steps == list(range(steps[0], steps[-1] + 1))
    assert not records.damaged
    assert any(marks(records))
    assert_counted_in_place(records)
    assert (records.events["kind"] == Kind.REDUCER).sum() == 1


def test_files_that_a_death_left_beside_the_thinned_one_are_passed_over(tmp_path: Path) -> None:
    # GIVEN a run that died between the rename and the removal of what the thinned file stands for
    recorder = recorder_in(tmp_path)
    train(recorder, 0, 300)
    early = (tmp_path / "records-00000.bin").read_bytes()
    train(recorder, 300, 12_000)
    recorder.close()
    whole = RecordReader(tmp_path).read()
    (tmp_path / "records-00000.bin").write_bytes(early)
    # THEN nothing counts twice
    again = RecordReader(tmp_path).read()
    assert again.events.tobytes() == whole.events.tobytes()
    assert again.strings == whole.strings


def test_the_records_around_a_profiler_window_stay_as_long_as_its_file(tmp_path: Path) -> None:
    recorder, begin = recorder_in(tmp_path), 1_000_000_000_000
    train(recorder, 0, 20)
    (tmp_path / "kineto-0.json.gz").write_bytes(bytes(1000))
    recorder.window("kineto-0.json.gz", begin + 8_000, begin + 11_000, by_user=False)  # steps 8, 9 and 10
    train(recorder, 20, 12_000)
    recorder.close()
    records = RecordReader(tmp_path).read()
    steps = steps_of(records)
    assert set(range(5, 14)) <= set(steps)
    calls = records.events[records.events["kind"] == Kind.CALL]
    of_window = [seq for seq in calls["a"].tolist() if seq <= 20 * 11]
    assert set(range(8 * 11 + 1, 11 * 11 + 1)) <= set(of_window)
    # AND what was let go is counted where it stood, before the window and after it
    assert_counted_in_place(records)
    assert (records.events["kind"] == Kind.WINDOW).sum() == 1


def test_of_profiler_files_the_newest_stay_within_half_of_the_bound(tmp_path: Path) -> None:
    recorder, begin = recorder_in(tmp_path), 1_000_000_000_000
    for window in range(6):
        train(recorder, 2000 * window, 2000 * window + 2000)
        (tmp_path / f"kineto-{window}.json.gz").write_bytes(bytes(900_000))
        at = begin + 2_000_000 * window
        recorder.window(f"kineto-{window}.json.gz", at, at + 3000, by_user=False)
        settled(recorder)
        assert folder_nbytes(tmp_path) <= LEAST_NBYTES
    train(recorder, 12_000, 15_000)
    recorder.close()
    assert sorted(path.name for path in tmp_path.glob("kineto-*")) == ["kineto-4.json.gz", "kineto-5.json.gz"]
    events = RecordReader(tmp_path).read()
    names = [events.strings[int(n)] for n in events.events["name"][events.events["kind"] == Kind.WINDOW]]
    assert names == ["kineto-4.json.gz", "kineto-5.json.gz"]


def test_a_program_that_makes_models_without_end_does_not_fill_the_folder_with_descriptions(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    largest = 0
    for model in range(400):
        content = {"reducer": model, "names": [f"layer{k}.weight" for k in range(1000)]}
        recorder.describe(Kind.REDUCER, json.dumps(content), begin=1)
        train(recorder, 20 * model, 20 * model + 20)
        give_way(recorder)
        largest = max(largest, folder_nbytes(tmp_path))
    recorder.close()
    assert largest <= LEAST_NBYTES
    records = RecordReader(tmp_path).read()
    reducers = records.events["name"][records.events["kind"] == Kind.REDUCER]
    told = [json.loads(records.strings[int(n)])["reducer"] for n in reducers]
    assert told == list(range(told[0], 400))
    assert len(recorder._texts.ids) < 20


def test_names_without_end_are_remembered_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptrace.record.descriptions.MOST_NAMES", 50)
    recorder = recorder_in(tmp_path)
    ids = [recorder.intern(f"group {k}") for k in range(100)]
    assert len(recorder._texts.ids) == 51
    assert len(set(ids[49:])) == 1
    recorder.close()
    strings = RecordReader(tmp_path).read().strings
    assert [strings[ids[0]], strings[ids[99]]] == ["group 0", "(one of too many names)"]


@pytest.mark.parametrize("wrong", [{"nbytes": 1000}, {"steps": 0}, {"every": 0}, {"every": 1.5}, {"nbytes": True}])
def test_a_bound_that_is_none_is_refused_in_one_sentence(wrong: dict[str, int]) -> None:
    with pytest.raises(DdptraceError, match=r"ddptrace.Keep has \w+=.*; give a whole number of at least \d+") as said:
        Keep(**wrong)
    assert "\n" not in str(said.value)


def test_phases_are_let_go_with_their_step(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.event(Kind.PHASE, Phase.FORWARD, 0, 1_000_000_000_010, 1_000_000_000_020)
    train(recorder, 0, 12_000)
    recorder.close()
    assert not (RecordReader(tmp_path).read().events["kind"] == Kind.PHASE).any()
