"""A full disk ends the record, never the training: a real, small file system is filled."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.record import Recorder, RecordReader
from ddptrace.record.segment import SEGMENT_NBYTES
from ddptrace.schema import RECORD_NBYTES, Kind
from tests.small_disk import fill, mounted
from tests.unit.kept_records import give_way


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 9 MB: room for two segments of records and little else."""
    with mounted(tmp_path, 9) as disk:
        yield disk


def train(steps: int) -> int:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return steps


def test_when_the_disk_fills_the_oldest_records_go_and_the_finding_says_so(small_disk: Path) -> None:
    from ddptrace.capture import session

    with ddptrace.trace(small_disk / "run"):
        train(10)
        recorder = session._current.recorder  # type: ignore[union-attr]
        for number in range(200_000):  # more records than two segments hold
            at = time.perf_counter_ns()
            recorder.event(0xFF, 0, 0, at, at)
            if number % 1000 == 0:
                give_way(recorder)
        assert train(50) == 50
    result = ddptrace.analyze(small_disk / "run")
    messages = {finding.code: finding.message for finding in result.findings}
    assert "The disk is full" in messages["disk-short"]
    assert "rank 0 kept steps 11 to 59 of 60" in messages["records-let-go"]
    assert [row.step for row in result.steps] == list(range(11, 60))  # step 10 lasted while the disk filled
    assert result.ranks[0].clean


def test_a_part_of_the_disk_is_left_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file system that is as good as full, but for what a program's checkpoint needs
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr("ddptrace.record.store.RESERVE_RATIO", 1.0)
    monkeypatch.setattr("ddptrace.record.store.RESERVE_NBYTES", 2 * free)
    recorder = Recorder(lambda: tmp_path)
    for number in range(300_000):
        recorder.event(0xFF, 0, 0, 1, 1)
        if number % 1000 == 0:
            give_way(recorder)
    give_way(recorder)
    # THEN no more is taken than two segments, and the newest records are there
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * SEGMENT_NBYTES + 100_000
    recorder.event(0xFE, 0, 0, 1, 1)
    recorder.close()
    events = RecordReader(tmp_path).read().events
    assert (events["kind"] == 0xFE).sum() == 1


def test_on_a_disk_without_a_byte_left_the_newest_records_still_take_the_place_of_the_oldest(small_disk: Path) -> None:
    folder = small_disk / "rank"
    folder.mkdir()
    recorder = Recorder(lambda: folder)
    # GIVEN that the program fills what the first two segments have left
    fill(small_disk)
    assert shutil.disk_usage(small_disk).free == 0
    # WHEN eight times as many records come as there is room for
    count = 16 * SEGMENT_NBYTES // RECORD_NBYTES
    for number in range(count):
        recorder.event(Kind.DONE, 0, 0, number + 1, number + 1, number)
        if number % 1000 == 0:
            give_way(recorder)
            assert recorder._spare is not None
    recorder.close()
    # THEN none is lost without a count, and the newest are there, in order
    records = RecordReader(folder).read()
    numbers = records.events["a"][records.events["kind"] == Kind.DONE].tolist()
    assert (records.dropped, records.torn, records.damaged) == (0, 0, ())
    assert numbers == list(range(count - len(numbers), count))
    assert len(numbers) > SEGMENT_NBYTES // RECORD_NBYTES // 2
    marks = records.events[(records.events["kind"] == Kind.LET_GO) & (records.events["flags"] == 1)]
    clocks_gone = int(marks["a"][0]) - (count - len(numbers))
    assert 0 <= clocks_gone < 1000


def test_where_not_even_the_second_segment_has_room_the_rest_is_lost_and_counted(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    folder = small_disk / "rank"
    folder.mkdir()
    recorder = Recorder(lambda: folder)
    for _ in range(70_000):
        recorder.event(0xFF, 0, 0, 1, 1)
    recorder.close()
    records = RecordReader(folder).read()
    assert records.dropped > 4000
    assert len(records.events) + records.dropped >= 70_000
    assert any("no room for more records" in text for text in records.strings.values())


def test_a_disk_that_is_full_from_the_start_warns_and_lets_the_training_run(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(7 << 20))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with ddptrace.trace(small_disk / "run") as tracing:
            assert train(5) == 5
            tracing.step()
    assert any("cannot record" in str(w.message) and "No space left" in str(w.message) for w in warned)
