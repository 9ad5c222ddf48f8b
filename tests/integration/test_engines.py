"""Ranks worked on in several processes or on a real Dask cluster give the same tables, byte for byte."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.engine import run_each
from ddptrace.errors import DdptraceError
from tests.conftest import need
from tests.launch import ROOT, environment
from tests.planted_modules import plant


def tables(result: Result) -> bytes:
    return msgspec.json.encode(result.to_json_dict())


@pytest.fixture(scope="module")
def one_process(shared_traces: Path) -> bytes:
    return tables(ddptrace.analyze(shared_traces / "dlrm-8ranks", jobs=1))


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    workers: tuple[subprocess.Popen[bytes], ...]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A real scheduler and two real workers, each a process that nobody starts again."""
    need(importlib.util.find_spec("distributed"), "distributed (pip install 'ddptrace[dask]')")
    place = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "cwd": tmp_path}
    log = tmp_path / "scheduler.log"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as file:
        scheduler = subprocess.Popen([*command, "--no-dashboard"], stdout=file, stderr=file, **place)  # type: ignore[call-overload]
    started = [scheduler]
    try:
        address = wait_for(log, r"(tcp://127\.0\.0\.1:\d+)")
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started += [subprocess.Popen([*worker, "--no-dashboard"], **quiet, **place) for _ in range(2)]
        joined(address, workers=2)
        yield Cluster(address, tuple(started[1:]))
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def wait_for(log: Path, pattern: str, timeout_s: float = 60) -> str:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{pattern} is not in the log: {log.read_text()}")


def joined(address: str, workers: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=60)


def test_several_processes_give_the_tables_of_one(shared_traces: Path, one_process: bytes) -> None:
    assert tables(ddptrace.analyze(shared_traces / "dlrm-8ranks", jobs=2)) == one_process


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dask_cluster_gives_the_tables_of_one_process(
    cluster: Cluster, shared_traces: Path, one_process: bytes
) -> None:
    assert tables(ddptrace.analyze(shared_traces / "dlrm-8ranks", scheduler=cluster.address)) == one_process


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_dask_worker_that_is_killed_half_way_costs_time_and_no_result(
    cluster: Cluster, shared_traces: Path, one_process: bytes
) -> None:
    def kill_one(done: int, count: int) -> None:
        if done == 2:
            cluster.workers[0].send_signal(signal.SIGKILL)
            cluster.workers[0].wait()

    result = ddptrace.analyze(shared_traces / "dlrm-8ranks", scheduler=cluster.address, progress=kill_one)
    assert cluster.workers[0].returncode == -signal.SIGKILL and cluster.workers[1].poll() is None
    assert tables(result) == one_process


def test_a_scheduler_that_is_not_there_is_said_in_one_sentence(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(importlib.util.find_spec("distributed"), "distributed (pip install 'ddptrace[dask]')")
    monkeypatch.setattr("ddptrace.engine.CONNECT_S", 1)
    with pytest.raises(DdptraceError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9") as caught:
        list(run_each(abs, [1], scheduler="tcp://127.0.0.1:9"))
    assert "\n" not in str(caught.value)


def test_workers_import_nothing_from_the_current_directory(tmp_path: Path) -> None:
    mark = plant(tmp_path / "planted")
    program = "from ddptrace.engine import run_each; import os; print(*run_each(abs, [-1, -2], jobs=2), *os.environ)"
    environ = {name: value for name, value in environment().items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, cwd=mark.parent, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert not mark.exists()
    assert done.stdout.split()[:2] == ["1", "2"], done.stderr
    assert "PYTHONSAFEPATH" not in done.stdout.split()  # what the caller starts afterwards is not our affair


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_local_worker_that_is_killed_is_said_in_one_sentence() -> None:
    with pytest.raises(DdptraceError, match="a worker process was killed"):
        list(run_each(die, [1, 2, 3], jobs=2))


def test_a_script_without_a_main_guard_can_use_several_processes(tmp_path: Path, shared_traces: Path) -> None:
    script = tmp_path / "mine.py"
    folder = str(shared_traces / "dlrm-8ranks")
    script.write_text(f"import ddptrace\nprint('start')\nprint(len(ddptrace.analyze({folder!r}, jobs=2).ranks))\n")
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["start", "8"], done.stderr


def test_answers_come_in_the_order_of_the_items_whoever_is_faster() -> None:
    assert list(run_each(nap, [0.3, 0.0, 0.2, 0.0], jobs=2)) == [0.3, 0.0, 0.2, 0.0]


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
