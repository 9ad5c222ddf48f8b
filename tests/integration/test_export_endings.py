"""How `ddptrace export` ends where something is amiss: with the destination, with the run, or when it is asked to."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from telemetry_records import recording, write_manifest

from ddptrace.cli import main
from tests.conftest import need
from tests.exported_runs import export, wait_until
from tests.launch import environment, in_foreground
from tests.otlp_receiver import Behaviour, Receiver
from tests.unit.test_telemetry_bad_answers import HEAD, dripping

NOT_DELIVERED = 5


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for rank in (0, 1):
        with recording(root, rank) as one:
            one.steps(0, 6)
    write_manifest(root)
    return root


@pytest.mark.parametrize("how", [(), ("--follow", "--host", "h")], ids=["afterwards", "followed"])
def test_ctrl_c_ends_it_soon_though_an_attempt_hangs(run: Path, how: tuple[str, ...]) -> None:
    bare = {name: value for name, value in environment().items() if not name.startswith("OTEL_")}
    bare["OTEL_EXPORTER_OTLP_TIMEOUT"] = "30"
    under_way = threading.Event()
    with dripping(HEAD, b"x", under_way) as url:
        argv = [sys.executable, "-m", "ddptrace", "export", str(run), "--otlp", url, *how]
        with subprocess.Popen(in_foreground(argv), env=bare, stderr=subprocess.PIPE, text=True) as process:
            assert under_way.wait(60)
            process.send_signal(signal.SIGINT)
            asked = time.monotonic()
            _, said = process.communicate(timeout=60)
    assert time.monotonic() - asked < 15, "the attempt has 30 s"
    assert process.returncode == NOT_DELIVERED
    assert "Error: " in said
    assert f"`ddptrace export {run}` delivers it from the directory" in said


@pytest.mark.parametrize("how", [(), ("--follow", "--host", "h")], ids=["afterwards", "followed"])
def test_a_run_whose_files_are_damaged_is_not_told_to_be_whole(run: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    file = next((run / "rank-00001").glob("*.bin"))
    content = bytearray(file.read_bytes())
    content[3000:3400] = b"\xa5" * 400
    file.write_bytes(content)
    done = export(run, "--otlp-json", tmp_path / "out.jsonl", *how)
    assert done.returncode == NOT_DELIVERED
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "the run itself is not whole (rank 1: " in error
    assert f"{file.name} was changed after it was written" in error
    assert "let go" not in error


def is_written(file: Path) -> bool:
    """Whether some of a rank has been read, then."""
    return file.exists() and file.stat().st_size > 0


def remove(root: Path) -> None:
    """Remove a run, also if a file is added meanwhile."""
    while root.exists():
        shutil.rmtree(root, ignore_errors=True)


def test_a_run_that_is_removed_while_it_is_followed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptrace.live.run_follower.LEFT_NS", 3 * 10**9)
    root, out = tmp_path / "run", tmp_path / "out.jsonl"
    with recording(root, 0) as rank:
        rank.steps(0, 6)
        removal = threading.Thread(target=lambda: (wait_until(lambda: is_written(out)), remove(root)))
        removal.start()
        argv = ["export", str(root), "--follow", "--host", "h", "--otlp-json", str(out)]
        done = CliRunner().invoke(main, argv)
        removal.join()
    assert done.exit_code == NOT_DELIVERED
    assert "Error: the run itself is not whole (rank 0: its folder was moved, replaced or removed" in done.stderr


@pytest.mark.parametrize("how", [(), ("--follow",)], ids=["afterwards", "followed"])
def test_what_cannot_be_exported_takes_the_place_of_nothing(tmp_path: Path, how: tuple[str, ...]) -> None:
    file, out = tmp_path / "run", tmp_path / "out.jsonl"
    file.write_text("no run")
    out.write_text("of last week")
    done = export(file, "--otlp-json", out, *how)
    assert done.returncode == 1
    assert re.fullmatch(rf"(exporting .*\n)?Error: {file} .*\n", done.stderr), done.stderr
    assert out.read_text() == "of last week"


def test_a_file_on_a_full_device_is_no_crash(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(Path("/dev/full").exists(), "/dev/full")
    monkeypatch.setattr("ddptrace.cli.export.PATIENCE_S", 0.6)
    done = CliRunner().invoke(main, ["export", str(run), "--otlp-json", "/dev/full"])
    assert done.exit_code == NOT_DELIVERED
    told = r"Error: ([\d,]+) of \1 spans and ([\d,]+) of \2 metric points were not delivered to /dev/full"
    assert re.search(rf"{told} \(No space left on device\)", done.stderr)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_takes_traces_only_is_told_how_it_is_spared(run: Path, protocol: str) -> None:
    with Receiver() as receiver:
        receiver.behaviour = Behaviour(no_metrics=True)
        done = CliRunner().invoke(main, ["export", str(run), "--otlp", receiver.url(protocol), "--protocol", protocol])
    assert done.exit_code == NOT_DELIVERED
    assert "OTEL_METRICS_EXPORTER=none besides its endpoint" in done.stderr
    assert "delivers it from the directory" not in done.stderr
