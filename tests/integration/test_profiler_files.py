"""Profiler files on a disk that is short of room, and what copying the program's own costs its training."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.load import read_run

COPIED_S = 0.05


def train(steps: int) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def traced(run: Path) -> None:
    with ddptrace.trace(run, profile=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)):
        train(8)


def profiler_files(run: Path) -> list[str]:
    return [path.name for path in (run / "rank-00000").iterdir() if path.name.startswith("kineto")]


def replace_copying(monkeypatch: pytest.MonkeyPatch, copying: Callable[[IO[bytes], IO[bytes]], Any]) -> None:
    monkeypatch.setattr("ddptrace.capture.windows.shutil.copyfileobj", copying)


def count_exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where profilers write to from now on."""
    exported: list[str] = []
    export = torch.autograd.profiler.profile.export_chrome_trace

    def noted(profiler: Any, path: str, *args: Any) -> None:
        exported.append(path)
        export(profiler, path, *args)

    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", noted)
    return exported


def test_no_profiler_file_takes_what_is_left_of_the_disk_for_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptrace.record.store.RESERVE_RATIO", 1.0)
    monkeypatch.setattr("ddptrace.record.store.RESERVE_NBYTES", 2 * shutil.disk_usage(tmp_path).total)
    exported = count_exports(monkeypatch)
    traced(tmp_path / "run")
    assert exported == []  # not even the plain file
    with ddptrace.trace(tmp_path / "own"), torch.profiler.profile() as own:
        train(2)
    with ddptrace.trace(tmp_path / "copied"):
        own.export_chrome_trace(str(tmp_path / "own.json"))
    assert (tmp_path / "own.json").exists()
    for name in ("run", "copied"):
        assert profiler_files(tmp_path / name) == []
        codes = [one.code for one in read_run(tmp_path / name).findings]
        assert "window-not-kept" in codes
        assert "window-unreadable" not in codes


def test_a_profiler_file_that_could_not_be_packed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(read: IO[bytes], written: IO[bytes]) -> None:
        written.write(read.read(1000))
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_copying(monkeypatch, half)
    with pytest.warns(RuntimeWarning, match="stopped watching profiler: OSError: .*No space left"):
        traced(tmp_path / "run")
    assert profiler_files(tmp_path / "run") == []
    assert len(ddptrace.analyze(tmp_path / "run").steps) == 8


def test_while_the_programs_own_profile_is_copied_training_is_said_to_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copyfileobj

    def slowly(read: IO[bytes], written: IO[bytes]) -> None:
        time.sleep(COPIED_S)
        copy(read, written)

    replace_copying(monkeypatch, slowly)
    with ddptrace.trace(tmp_path / "run"):
        with torch.profiler.profile() as own:
            train(2)
        own.export_chrome_trace(str(tmp_path / "own.json"))
        train(1)
    (pause,) = read_run(tmp_path / "run").ranks[0].pauses
    assert pause.reason == "copying the program's profile"
    assert pause.end_at_ns - pause.begin_at_ns >= COPIED_S * 1e9
    assert profiler_files(tmp_path / "run") == ["kineto-user-0.json.gz"]
