"""Completions are noted on the backend's thread, and written later."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

from ddptrace.capture.collectives.completions import MANY, Completions
from ddptrace.load.run import read_run
from ddptrace.load.run_folder import records_of
from ddptrace.record import Recorder
from ddptrace.schema import Kind
from tests.launch import torchrun


def test_a_program_without_backwards_writes_them_itself(tmp_path: Path) -> None:
    said = torchrun("no_backward.py", tmp_path / "run", ranks=1)
    most, count = map(int, re.findall(r"most: (\d+) of (\d+)", said)[0])
    assert count == 4 * MANY and MANY / 8 < most <= MANY + 2
    calls = [call for call in read_run(tmp_path / "run").ranks[0].calls if call.op == "all_reduce"]
    assert len(calls) == count and all(call.done_at_ns is not None for call in calls)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(lambda: tmp_path)


def test_a_stamp_is_used_again_and_each_operation_has_its_own_instant(recorder: Recorder, tmp_path: Path) -> None:
    completions, bounds = Completions(recorder), []
    for seq in range(1, 6):
        future: torch.futures.Future[int] = torch.futures.Future()
        completions.follow(seq, future)
        assert completions.due == {seq} and not completions.noted
        bounds.append(time.perf_counter_ns())
        future.set_result(0)
        bounds.append(time.perf_counter_ns())
        completions.write()
        assert not completions.due and len(completions._free) == 1
    recorder.close()
    done = _done(tmp_path)
    assert [seq for seq, _, _ in done] == [1, 2, 3, 4, 5]
    assert all(low <= at <= high for (_, at, _), low, high in zip(done, bounds[::2], bounds[1::2], strict=True))


def test_one_that_fails_is_told_as_failed(recorder: Recorder, tmp_path: Path) -> None:
    completions = Completions(recorder)
    futures = [torch.futures.Future[int]() for _ in range(2)]
    for seq, future in enumerate(futures):
        completions.follow(seq, future)
    futures[1].set_exception(RuntimeError("the wire is cut"))
    futures[0].set_result(0)
    completions.write()
    recorder.close()
    assert [(seq, failed) for seq, _, failed in _done(tmp_path)] == [(1, True), (0, False)]


def _done(folder: Path) -> list[tuple[int, int, bool]]:
    """Seq, instant and whether it failed, as they were written."""
    events = records_of(folder).events
    return [(int(one["a"]), int(one["begin"]), bool(one["flags"])) for one in events if one["kind"] == Kind.DONE]
