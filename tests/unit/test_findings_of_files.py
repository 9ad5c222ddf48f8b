"""What files of many ranks have in common is told once; and which broadcasts are of DDP's buffers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddptrace.analysis.findings.findings import of_several_files
from ddptrace.findings import EXEC_MISSING, RANK_CLAIMED_TWICE, Finding
from tests.unit.foreign_files import Event, load, op, said


def missing(rank: int, count: int) -> Finding:
    return EXEC_MISSING(f"rank {rank}, {rank}.json", f"{count} collectives were launched")


def test_findings_that_differ_in_their_count_alone_become_one_with_a_range() -> None:
    other = RANK_CLAIMED_TWICE("rank 1, b.json", "this file claims rank 1")
    first, second = of_several_files([missing(0, 5), other, missing(1, 7), missing(2, 6)])
    assert (first.code, first.where) == ("exec-missing", "ranks 0, 1 and 2")
    assert "5 to 7 collectives were launched" in first.message
    assert second == replace(other, message="This file claims rank 1")


def test_findings_of_one_rank_or_of_no_file_stay_as_they_are() -> None:
    alone = [missing(0, 5), EXEC_MISSING("run", "2 of all"), EXEC_MISSING("run", "3 of all")]
    assert of_several_files(alone) == alone


def forward(*inside: Event) -> list[Event]:
    return [said("DistributedDataParallel.forward", 0, 100), *inside]


def buffers(folder: Path, *events: Event) -> list[tuple[int, int]]:
    (window,) = load(folder, *events).run.windows
    return [*window.buffers]


def test_a_broadcast_between_packing_and_copying_is_of_buffers(tmp_path: Path) -> None:
    sent = [op("aten::flatten_dense_tensors", 5, 10), op("c10d::broadcast_", 12, 20), op("aten::copy_", 30, 40)]
    assert buffers(tmp_path, *forward(*sent, op("aten::conv2d", 50, 60))) == [(5_000, 40_000)]


def test_a_broadcast_of_the_model_itself_is_not(tmp_path: Path) -> None:
    assert buffers(tmp_path, *forward(op("aten::conv2d", 5, 10), op("c10d::broadcast_", 12, 20))) == []
    assert buffers(tmp_path, op("aten::flatten_dense_tensors", 5, 10), op("c10d::broadcast_", 12, 20)) == []
