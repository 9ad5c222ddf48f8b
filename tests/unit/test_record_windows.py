"""Profiler files in a bounded folder: what they hold on to, what they may take, and what is told once they are gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ddptrace.findings import Finding
from ddptrace.load.run import read_run
from ddptrace.record import Recorder, RecordReader, directory
from ddptrace.record.store import NO_SPAN, WindowFiles
from ddptrace.record.thin import Wanted, thinned
from ddptrace.schema import EVENT_DTYPE, GUARD, MANIFEST, SCHEMA_VERSION, Kind, rank_folder
from ddptrace.trace_options import LEAST_NBYTES
from tests.unit.kept_records import recorder_in, settled, train

BEGIN = 1_000_000_000_000  # of `train`, whose steps take 1000 ns
S = 1_000_000_000


def save_window(recorder: Recorder, folder: Path, number: int, first: int, last: int, *, nbytes: int) -> None:
    """A file of the steps from `first` to `last`."""
    name = f"kineto-{number}.json.gz"
    (folder / name).write_bytes(bytes(nbytes))
    recorder.window(name, BEGIN + 1000 * first, BEGIN + 1000 * last, by_user=False)


def records_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("records-*.bin"))


def steps_left(folder: Path) -> list[int]:
    events = RecordReader(folder).read().events
    found: list[int] = events["a"][events["kind"] == Kind.STEP].tolist()
    return found


def test_a_profiler_file_larger_than_the_bound_leaves_half_of_it_to_the_records(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    train(recorder, 0, 20)
    save_window(recorder, tmp_path, 0, 8, 11, nbytes=2 * LEAST_NBYTES)
    train(recorder, 20, 8_000)
    settled(recorder)
    recorder.close()
    assert (tmp_path / "kineto-0.json.gz").exists()
    assert LEAST_NBYTES // 4 < records_nbytes(tmp_path) <= LEAST_NBYTES // 2
    steps = steps_left(tmp_path)
    assert set(range(6_700, 8_000)) <= set(steps)
    assert set(range(8, 11)) <= set(steps)


def test_a_window_as_long_as_the_training_does_not_hold_on_to_all_its_records(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    train(recorder, 0, 3_000)
    save_window(recorder, tmp_path, 0, 1, 3_000, nbytes=1000)
    for first in range(3_000, 12_000, 1000):
        train(recorder, first, first + 1000)
        settled(recorder)
        assert records_nbytes(tmp_path) <= LEAST_NBYTES
    recorder.close()
    assert set(range(10_000, 12_000)) <= set(steps_left(tmp_path))


def window_files(folder: Path) -> tuple[WindowFiles, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    return WindowFiles(lambda: folder, lambda number, count: told.append((number, count))), told


def test_no_more_than_ten_seconds_on_either_side_of_a_window_are_held_on_to(tmp_path: Path) -> None:
    files, _ = window_files(tmp_path)
    files.add(1, "short", 100 * S, 102 * S)
    files.add(2, "long", 100 * S, 200 * S)
    files.add(3, "unknown", 0, 0)
    assert files.spans() == {1: (98 * S, 104 * S), 2: (90 * S, 210 * S), 3: (0, -1)}


def test_margins_go_first_then_the_oldest_files_and_at_last_what_the_newest_holds_on_to(tmp_path: Path) -> None:
    files, told = window_files(tmp_path)
    for number in (1, 2):
        (tmp_path / f"file {number}").touch()
        files.add(number, f"file {number}", 100 * number * S, (100 * number + 2) * S)
    seen = []
    while files.pin_less():
        seen.append(files.spans())
    assert seen == [
        {1: (100 * S, 102 * S), 2: (198 * S, 204 * S)},
        {1: (100 * S, 102 * S), 2: (200 * S, 202 * S)},
        {2: (200 * S, 202 * S)},
        {2: NO_SPAN},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["file 2"]
    assert told == [(1, 1)]


def findings_of(root: Path) -> list[Finding]:
    directory.write_json(root / MANIFEST, {"schema": SCHEMA_VERSION, "run_id": "r", "zero_unix_ns": 0, "world_size": 1})
    return [one for one in read_run(root).findings if one.code.startswith("window")]


def test_profiler_files_that_keep_let_go_are_told_as_such_and_not_as_damage(tmp_path: Path) -> None:
    folder = tmp_path / rank_folder(0)
    folder.mkdir()
    directory.write_meta(folder, {"schema": SCHEMA_VERSION, "run_id": "r", "rank": 0, "host": "h", "pid": 1})
    recorder = recorder_in(folder)
    for number in range(6):
        train(recorder, 100 * number, 100 * number + 100)
        save_window(recorder, folder, number, 100 * number + 1, 100 * number + 2, nbytes=900_000)
        settled(recorder)
    # THEN both while their records are there, and once these have gone as well: two are left, which hold nothing
    for first, last in ((600, 700), (700, 12_000)):
        train(recorder, first, last)
        gone, *unreadable = findings_of(tmp_path)
        assert (gone.code, gone.severity, gone.where) == ("windows-let-go", "info", "rank 0")
        assert "4 profiler files were removed" in gone.message
        assert [one.where for one in unreadable] == [f"rank 0, kineto-{number}.json.gz" for number in (4, 5)]
    recorder.close()
    kinds = RecordReader(folder).read().events["kind"]
    assert (kinds == Kind.FILE_LET_GO).sum() == 1


def test_clocks_around_a_window_stay_and_the_first_and_the_last_but_not_the_rest() -> None:
    slots = np.zeros(20, EVENT_DTYPE)
    slots["kind"], slots["guard"] = Kind.CLOCK, GUARD
    slots["begin"] = slots["end"] = np.arange(20) * 10
    window = (75, 105)
    body = np.frombuffer(thinned(slots, Wanted({1: window}, (), 1_000_000)), EVENT_DTYPE)
    assert body["begin"][body["kind"] == Kind.CLOCK].tolist() == [0, 70, 80, 90, 100, 110, 190]
    ((gone,),) = [body["a"][(body["kind"] == Kind.LET_GO) & (body["flags"] == 1)].tolist()]
    assert gone == 13
    # AND once more, with later ones, the last of before goes
    later = slots[:5].copy()
    later["begin"] = later["end"] = 200 + np.arange(5) * 10
    again = np.frombuffer(thinned(np.concatenate([body, later]), Wanted({1: window}, (), 1_000_000)), EVENT_DTYPE)
    assert again["begin"][again["kind"] == Kind.CLOCK].tolist() == [0, 70, 80, 90, 100, 110, 240]
