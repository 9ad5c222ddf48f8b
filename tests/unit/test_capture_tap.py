"""The tap's self-test, and the waits for functional collectives that it tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses import FakeTensorMode

import ddptrace
from ddptrace.capture.collectives import calls as functional_waits
from ddptrace.capture.collectives import tap
from ddptrace.capture.collectives.calls import FunctionalWaits
from ddptrace.capture.collectives.tap import Operator
from ddptrace.record import RecordReader
from ddptrace.schema import Kind

IN_PLACE = Operator("all_reduce", None, 1, None, (0,), ())
GATHERED = Operator("all_gather_into_tensor_coalesced", None, 2, None, (1,), (0,))


def test_a_tap_that_failed_its_self_test_is_not_trusted_by_the_next_trace_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def disproved() -> None:
        raise RuntimeError("planted: the self-test saw nothing")

    monkeypatch.setattr(tap, "_proven", False)
    monkeypatch.setattr(tap, "_prove", disproved)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            tap.install()


def test_only_waits_for_tensors_with_data_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watcher:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def awaits(self, tensor: torch.Tensor) -> int:
            self.told.append(tensor)
            return len(self.told)

        def awaited(self, token: int) -> None:
            self.told.append(token)

    watcher = Watcher()
    tap.install()
    monkeypatch.setattr(tap, "_watcher", watcher)
    with FakeTensorMode():  # as a compiler has it
        torch.ops._c10d_functional.wait_tensor(torch.ones(3))
    assert watcher.told == []
    real = torch.ones(3)
    torch.ops._c10d_functional.wait_tensor(real)
    first, token = watcher.told
    assert first is real
    assert token == 1


def test_a_tensor_is_waited_for_once_and_the_outputs_of_one_call_each() -> None:
    waits = FunctionalWaits()
    summed, given, one, two = (torch.ones(3) for _ in range(4))
    waits.made(IN_PLACE, ([summed], None), 5)
    waits.made(GATHERED, ([one, two], [given], None), 6)
    assert [waits.take(tensor) for tensor in (summed, summed, given, two, one)] == [5, 0, 0, 6, 6]


def test_the_work_of_a_functional_collective_is_not_kept(tmp_path: Path) -> None:
    from ddptrace.capture import session

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with ddptrace.trace(tmp_path / "run"):
            assert session._current is not None
            collectives = session._current.collectives
            functional.wait_tensor(functional.all_reduce(torch.ones(1000), "sum", dist.group.WORLD))
            assert collectives._thread.last_work is None and not collectives._seq_of
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            assert collectives._thread.last_work is work
            work.wait()
    finally:
        dist.destroy_process_group()


def test_where_a_call_comes_from_is_there_before_the_backend_has_it(tmp_path: Path) -> None:
    """Gloo refuses the root, and would not come back at all from worse."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    options = dist.BroadcastOptions()
    options.rootRank = 5
    try:
        with ddptrace.trace(tmp_path / "run"):
            dist.all_reduce(torch.ones(3))
            with pytest.raises(RuntimeError, match="invalid root"):
                dist.distributed_c10d._get_default_group().broadcast([torch.ones(4)], options)
    finally:
        dist.destroy_process_group()
    records = RecordReader(tmp_path / "run" / "rank-00000").read()
    rows = {kind: records.events[records.events["kind"] == kind] for kind in (Kind.CALL, Kind.ORIGIN)}
    assert [rows[kind]["a"].tolist() for kind in (Kind.CALL, Kind.ORIGIN)] == [[1], [1, 2]]
    done, begun = rows[Kind.ORIGIN]
    assert [records.strings[int(row["f"])] for row in (done, begun)] == ["all_reduce", "broadcast"]
    assert [int(row["b"]) for row in (done, begun)] == [12, 16]
    assert int(begun["g"]) == int(rows[Kind.CALL][0]["d"])
    assert "test_capture_tap.py:" in records.strings[int(begun["name"])]


def test_a_program_that_never_waits_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional_waits, "MOST_TENSORS", 10)
    waits, tensors = FunctionalWaits(), [torch.ones(1) for _ in range(101)]
    for seq, tensor in enumerate(tensors, start=1):
        waits.made(IN_PLACE, (tensor, None), seq)
    assert sum(waits.take(tensor) > 0 for tensor in tensors) <= 10
