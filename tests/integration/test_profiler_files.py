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
import torch.autograd.profiler as autograd_profiler
from torch import nn

import ddptrace
from ddptrace.capture.profiler.windows import Windows
from ddptrace.load.run import read_run

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
    monkeypatch.setattr("ddptrace.capture.profiler.kineto_files.shutil.copyfileobj", copying)


def at_once(*, active: int) -> Callable[[int], Any]:
    """Windows of so many steps without a pause."""
    with pytest.warns(UserWarning, match="won't be using warmup"):
        return torch.profiler.schedule(wait=0, warmup=0, active=active)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


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
    with ddptrace.trace(tmp_path / "copied"):
        with torch.profiler.profile() as own:
            train(2)
        own.export_chrome_trace(str(tmp_path / "own.json"))
    assert (tmp_path / "own.json").exists()
    for name in ("run", "copied"):
        assert profiler_files(tmp_path / name) == []
        codes = [one.code for one in read_run(tmp_path / name).findings]
        assert "window-not-kept" in codes
        assert "window-unreadable" not in codes


def test_a_plain_profiler_file_is_not_even_begun_where_it_will_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, sizes = count_exports(monkeypatch), []
    kept = Windows._keep
    monkeypatch.setattr(Windows, "_keep", lambda *args: sizes.append(args[2].stat().st_size) or kept(*args))
    traced(tmp_path / "fits")
    (nbytes,) = sizes
    for free, count in ((4 * nbytes, 1), (nbytes - 1, 0)):
        exported.clear()
        monkeypatch.setattr("ddptrace.record.store.Store.free_nbytes", lambda _, free=free: free)
        traced(tmp_path / str(free))
        assert len(exported) == count == len(profiler_files(tmp_path / str(free)))


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


@pytest.mark.filterwarnings("error:ddptrace")
def test_a_process_with_too_many_open_files_loses_one_window_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, calls = shutil.copyfileobj, []

    def first_fails(read: IO[bytes], written: IO[bytes]) -> None:
        calls.append(read)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        copy(read, written)

    replace_copying(monkeypatch, first_fails)
    with ddptrace.trace(tmp_path / "run", profile=torch.profiler.schedule(wait=1, warmup=1, active=1)):
        train(7)
    assert profiler_files(tmp_path / "run") == ["kineto-1.json.gz"]
    (note,) = [one for one in read_run(tmp_path / "run").findings if one.code == "window-not-kept"]
    assert "Too many open files" in note.message


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
def test_after_a_file_that_could_not_be_kept_no_profiler_records_the_rest_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_copying(monkeypatch, no_room)
    enabled: list[bool] = []
    # GIVEN a window right after the other
    one_after_another = at_once(active=2)

    def training() -> None:
        with ddptrace.trace(tmp_path / "run", profile=one_after_another):
            for _ in range(4):
                train(1)
                enabled.append(autograd_profiler._is_profiler_enabled)

    with pytest.warns(RuntimeWarning, match="stopped watching profiler: OSError"):
        training()
    # THEN it ends with the first of them
    assert enabled == [True, False, False, False]
    assert profiler_files(tmp_path / "run") == []


def test_a_copy_of_the_programs_profile_that_fails_ends_our_profiler_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_copying(monkeypatch, no_room)
    enabled: list[bool] = []
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=5, repeat=1)

    def training() -> None:
        with ddptrace.trace(tmp_path / "run", profile=schedule):
            with torch.profiler.profile() as its:
                train(1)
            train(3)
            enabled.append(autograd_profiler._is_profiler_enabled)
            its.export_chrome_trace(str(tmp_path / "its.json"))
            enabled.append(autograd_profiler._is_profiler_enabled)
            train(1)

    with pytest.warns(RuntimeWarning, match="stopped watching profiler: OSError"):
        training()
    assert enabled == [True, False]
    assert (tmp_path / "its.json").stat().st_size
    assert profiler_files(tmp_path / "run") == []


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
