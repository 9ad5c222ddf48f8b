"""Which runs a path stands for, how each was set up, and what is made when runs are made in turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptrace.cli.in_turns import make_runs
from ddptrace.errors import DdptraceError, RunDirectoryError
from ddptrace.load.run import open_run, runs_of, settings_of_run

MANIFEST = {"schema": "1.5", "run_id": "ab" * 16, "world_size": 2, "zero_unix_ns": 1,
            "versions": {"python": "3.11.7", "torch": "2.13.0", "platform": "linux"},
            "watching": {"collectives": "dispatcher tap", "surfaces": []}}  # fmt: skip


def made(run: Path, *, threads: tuple[int, ...] = (1, 1)) -> Path:
    for rank, count in enumerate(threads):
        folder = run / f"rank-{rank:05d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text(json.dumps({"rank": rank, "torch_threads": count, "cpus": 2}))
    (run / "manifest.json").write_text(json.dumps(MANIFEST))
    return run


def test_a_run_directory_is_one_run_and_a_folder_of_several_is_all_of_them_by_name(tmp_path: Path) -> None:
    runs = [made(tmp_path / "side" / name) for name in ("02", "01", "10")]
    assert runs_of([runs[0]]) == [(runs[0],)]
    assert runs_of([tmp_path / "side"]) == [(runs[1],), (runs[0],), (runs[2],)]


def test_globs_lists_and_attempts_are_taken_one_by_one(tmp_path: Path) -> None:
    one, two = made(tmp_path / "a-1"), made(tmp_path / "a-2")
    made(two / "attempt-1")
    assert runs_of([tmp_path / "a-*"]) == [(one,), (two,)]
    assert runs_of([two, one]) == [(two,), (one,)]
    assert runs_of([two / "attempt-0"]) == [(two / "attempt-0",)]


def test_a_folder_without_run_directories_is_one_run_and_files_are_one_together(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{k}.json" for k in (0, 1)]
    for file in files:
        file.write_text("{}")
    assert runs_of([tmp_path]) == [(tmp_path,)]
    assert runs_of([tmp_path / "*.json"]) == [tuple(files)]


def test_a_glob_that_matches_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="nothing matches"):
        runs_of([tmp_path / "none-*"])


def test_versions_threads_and_processors_are_read_of_a_run(tmp_path: Path) -> None:
    assert settings_of_run(open_run([made(tmp_path / "run", threads=(1, 4))])) == {
        "python": "3.11.7", "torch": "2.13.0", "platform": "linux", "processors a rank may use": "2",
        "threads of a rank": "1, 4", "collectives are seen by": "dispatcher tap",
    }  # fmt: skip


def test_a_manifest_that_holds_something_else_has_no_settings(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    (run / "manifest.json").write_text(json.dumps(MANIFEST | {"versions": [1], "watching": "x"}))
    assert set(settings_of_run(open_run([run]))) == {"processors a rank may use", "threads of a rank"}


def test_one_folder_for_both_sides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DdptraceError, match="give two"):
        make_runs(1, {tmp_path: "true"}, print)


def test_one_folder_is_refused_however_it_is_spelled_and_one_within_the_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "side")
    for other in (tmp_path / "link", tmp_path / "x" / ".." / "side", tmp_path / "side" / "inner"):
        with pytest.raises(DdptraceError, match="neither inside the other"):
            make_runs(1, {tmp_path / "side": "true", other: "true"}, print)
    assert not (tmp_path / "side").exists()


def test_what_a_command_leaves_behind_is_ended_before_the_next_run(tmp_path: Path) -> None:
    run, other, pid = made(tmp_path / "made"), tmp_path / "b", tmp_path / "pid"
    make_runs(1, {
        tmp_path / "a": f"cp -r {run} {{run}}; sleep 300 & echo $! > {pid}",
        other: f"cp -r {run} {{run}}; ps -o stat= -p $(cat {pid}) | grep -v Z > {other}/alive; true",
    }, print)  # fmt: skip
    assert (other / "alive").read_text() == ""


def test_who_will_not_wait_for_what_does_not_end_has_it_killed(tmp_path: Path) -> None:
    # GIVEN a command that does not hear that it is to end
    pid = tmp_path / "pid"
    deaf = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
    argv = [sys.executable, "-m", "ddptrace", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--repeat", "1",
            "--run-before", deaf, "--run-after", "true"]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as command:
        await_pid(pid)
        # WHEN it is asked twice
        command.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        command.send_signal(signal.SIGTERM)
        try:
            assert command.wait(20) == 128 + signal.SIGTERM
        finally:
            command.kill()
    # THEN nothing of it is left
    assert not is_alive(int(pid.read_text()))


def test_a_signal_between_start_and_wait_ends_the_command_too(tmp_path: Path) -> None:
    # GIVEN a comparison that is told to end before it knows the process that it has just started
    pid = tmp_path / "pid"
    program = f"""
import os, signal, subprocess, sys
from ddptrace.cli.in_turns import make_run
class Interrupted(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        open({str(pid)!r}, "w").write(str(self.pid))
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Interrupted
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
from pathlib import Path
make_run(Path({str(tmp_path / "a")!r}), "sleep 300")
"""
    # WHEN it ends
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 143, ended.stderr
    # THEN the process is gone
    assert not is_alive(int(pid.read_text()))


def test_what_a_command_started_ends_when_the_comparison_is_ended(tmp_path: Path) -> None:
    # GIVEN a command whose own child sleeps
    pid = tmp_path / "pid"
    argv = [sys.executable, "-m", "ddptrace", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--repeat", "1",
            "--run-before", f"sleep 300 & echo $! > {pid}; wait", "--run-after", "true"]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as command:
        await_pid(pid)
        # WHEN the comparison is told to end
        command.send_signal(signal.SIGTERM)
        command.wait(30)
    # THEN nothing of it is left
    until = time.monotonic() + 20
    while is_alive(int(pid.read_text())):
        assert time.monotonic() < until
        time.sleep(0.02)


def await_pid(file: Path) -> None:
    """Until a command has written its own."""
    until = time.monotonic() + 30
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
