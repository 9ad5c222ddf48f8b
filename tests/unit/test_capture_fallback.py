"""The methods of `ProcessGroup` where the tap does not work: what fails there stays out of training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ddptrace
from ddptrace.capture import session
from ddptrace.capture.collectives import fallback, tap
from ddptrace.load.run import read_run


@pytest.fixture(autouse=True)
def without_the_tap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a group of one rank."""
    monkeypatch.setattr(tap, "install", failing)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def failing(*args: Any, **kwargs: Any) -> Any:
    raise LookupError("planted")


def reduced() -> list[float]:
    tensor = torch.full((3,), 2.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    return tensor.tolist()


@pytest.mark.parametrize("broken", ["a tensor", "the group", "the work"])
def test_what_cannot_be_read_of_a_call_ends_the_watching_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    owner, name = {
        "a tensor": (fallback, "_tensors"),
        "the group": (dist.ProcessGroup, "boxed"),
        "the work": (dist.Work, "boxed"),
    }[broken]
    stopped = pytest.warns(RuntimeWarning, match="stopped watching collectives: LookupError: planted")
    with stopped, ddptrace.trace(tmp_path / "run"):
        monkeypatch.setattr(owner, name, failing)
        assert reduced() == [2.0] * 3
        assert reduced() == [2.0] * 3
    (rank,) = read_run(tmp_path / "run").ranks
    assert len(rank.calls) == (1 if broken == "the work" else 0)  # it was issued, all the same
    assert rank.unrecorded_from_at_ns is not None
    assert rank.begin_at_ns < rank.unrecorded_from_at_ns < rank.end_at_ns


def test_a_surface_that_is_off_or_paused_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ddptrace.trace(tmp_path / "run"):
        assert reduced() == [2.0] * 3
        monkeypatch.setattr(fallback, "_tensors", failing)
        assert session._current is not None
        surface = session._current.surfaces["collectives"]
        surface.pause(True)
        assert reduced() == [2.0] * 3
        assert surface.on
        surface.off()
        assert reduced() == [2.0] * 3
    (rank,) = read_run(tmp_path / "run").ranks
    assert [(call.op, call.nbytes_in) for call in rank.calls] == [("all_reduce", 12)]
    assert rank.unrecorded_from_at_ns is None  # it did not fail
