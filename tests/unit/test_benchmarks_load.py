"""The benchmark of loading: replicas that are real traces, only longer, and costs of whole trees of processes."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ddptrace
from benchmarks import processes
from benchmarks.__main__ import main
from benchmarks.load import FEW, HTA, INFLATE, OURS, WARM, Benchmark, check_same, table
from benchmarks.load_replicate import replicate
from benchmarks.processes import Cost, measured
from ddptrace.analyzer import rank_populations
from ddptrace.errors import DdptraceError
from tests.conftest import need

MB = 1_000_000
Json = dict[str, Any]


def read(path: Path) -> Json:
    told: Json = json.loads(gzip.decompress(path.read_bytes()))
    return told


@pytest.fixture
def small(shared_traces: Path) -> Path:
    return next((shared_traces / "dlrm-8ranks").glob("worker1_*"))


def test_a_replica_is_the_trace_again_and_again(small: Path, tmp_path: Path) -> None:
    # GIVEN a trace of 1 MB of which three copies make 3 MB
    original, paths = read(small), replicate(small, tmp_path, ranks=2, nbytes=3 * MB)
    for rank, path in enumerate(paths):
        replica = read(path)
        # THEN every event is there three times but for what must differ
        same = [
            Counter((e.get("cat"), e["ph"], e.get("dur")) for e in one["traceEvents"]) for one in (original, replica)
        ]
        assert same[1] == Counter({key: 3 * count for key, count in same[0].items()})
        # AND the file says whose it is, in the way that HTA finds
        assert (replica["distributedInfo"]["rank"], replica["distributedInfo"]["world_size"]) == (rank, 2)
        assert f'"rank": {rank},' in gzip.decompress(path.read_bytes()).decode()
        assert replica["deviceProperties"] == original["deviceProperties"]


def test_copies_do_not_touch_each_other_and_each_keeps_its_own_launches(small: Path, tmp_path: Path) -> None:
    (path,) = replicate(small, tmp_path, ranks=1, nbytes=3 * MB)
    events = read(path)["traceEvents"]
    assert len(events) % 3 == 0
    size = len(events) // 3
    copies = [[e for e in events[at : at + size] if e["ph"] == "X"] for at in (0, size, 2 * size)]
    for earlier, later in ((0, 1), (1, 2)):
        assert max(e["ts"] + e["dur"] for e in copies[earlier]) < min(e["ts"] for e in copies[later])
    for key in ("correlation", "External id"):
        ids = [{e["args"][key] for e in copy if e.get("args", {}).get(key, 0) > 0} for copy in copies]
        assert ids[0] and len(ids[0]) == len(ids[1]) and not (ids[0] & ids[1] or ids[1] & ids[2])
    steps = [{e["name"] for e in copy if e["name"].startswith("ProfilerStep#")} for copy in copies]
    assert steps == [{"ProfilerStep#10"}, {"ProfilerStep#11"}, {"ProfilerStep#12"}]


def test_work_of_a_replica_is_that_of_its_copies_to_the_nanosecond(shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN a trace with three decimals of a µs
    trace = shared_traces / "ddp-a100" / "nccl_data.json.gz"
    (once,) = rank_populations(trace, jobs=1)
    # WHEN it is there twice
    (twice,) = rank_populations(replicate(trace, tmp_path, ranks=1, nbytes=20 * MB), jobs=1)
    # THEN so is all work, launches found as before
    assert once.all is not None and twice.all is not None and once.gpu_events is not None
    for name in ("compute_ns", "comm_ns", "memory_ns", "hidden_ns"):
        assert getattr(twice.all, name) == 2 * getattr(once.all, name)
    assert (twice.gpu_events, twice.gpu_events_with_launch) == (2 * once.gpu_events, 2 * once.gpu_events)
    whole, copies = (ddptrace.analyze(one, jobs=1) for one in (trace, tmp_path))
    assert (len(copies.steps), len(copies.collectives)) == (2 * len(whole.steps), 2 * len(whole.collectives))


@pytest.mark.parametrize("content", ["{", '{"traceEvents": []}', "[1, 2]", ""])
def test_what_is_no_trace_is_refused_in_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(DdptraceError, match=r"odd\.json .*; give a"):
        replicate(tmp_path / "odd.json", tmp_path, ranks=1, nbytes=MB)


def test_a_trace_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DdptraceError, match=r"none\.json cannot be read \(No such file or directory\); give a trace"):
        replicate(tmp_path / "none.json", tmp_path, ranks=1, nbytes=MB)


BUSY = """
import os, sys, time
held = bytearray(80_000_000)
child = os.fork()
own = bytearray(60_000_000)
until = time.process_time() + 0.2
while time.process_time() < until: pass
if child:
    os.waitpid(child, 0)
    print("done", len(held), len(own))
"""


def test_a_cost_counts_the_processes_that_a_program_starts_and_shared_memory_once() -> None:
    cost, printed = measured([sys.executable, "-c", BUSY], os.environ)
    assert printed == "done 80000000 60000000\n"
    assert cost.cpu_s >= 0.4
    assert cost.peak_nbytes is not None
    assert 200 * MB <= cost.peak_nbytes < 260 * MB  # 80 shared, 60 twice, and two interpreters


def test_a_program_that_fails_is_told_with_its_last_line() -> None:
    with pytest.raises(DdptraceError, match="a measured program failed: ValueError: no such thing"):
        measured([sys.executable, "-c", "raise ValueError('no such thing')"], os.environ)


def test_different_answers_end_the_benchmark() -> None:
    ours = {"with_launch": {"0": [15.609, 500.0, 100.0, 660.0]}, "all": {"0": [15.0, 1.0, 1.0, 1.0]}}
    hta = {"with_launch": {"0": [15.61, 500.0000001, 100.0, 660.0]}}
    check_same({OURS: ours, WARM: ours, HTA: hta})
    with pytest.raises(DdptraceError, match="HTA says"):
        check_same({OURS: ours, WARM: ours, HTA: {"with_launch": {"0": [15.61, 500.1, 100.0, 660.0]}}})
    with pytest.raises(DdptraceError, match="HTA says"):
        check_same({OURS: ours, WARM: ours, HTA: {"with_launch": {"0": [15.62, 500.0, 100.0, 660.0]}}})
    with pytest.raises(DdptraceError, match="cache"):
        check_same({OURS: ours, WARM: ours | {"all": {}}})


def test_the_floors_are_judged_by_the_median_round_with_the_spread_beside_it() -> None:
    def found(ours_cpu_s: tuple[float, ...]) -> str:
        costs = {
            INFLATE: (Cost(0.5, 1.0, 20 * MB),) * 3,
            OURS: tuple(Cost(cpu, 1.0, 100 * MB) for cpu in ours_cpu_s),
            FEW: (Cost(0.5, 1.0, 80 * MB),) * 3,
            HTA: (Cost(20.0, 9.0, 600 * MB),) * 3,
        }
        return table(Benchmark("t.json", 64, costs, {INFLATE: 64 * MB, OURS: 64 * MB, FEW: 8 * MB, HTA: 64 * MB}))

    assert "CPU time: 20.0 (8.0 .. 40.0); floor 10: met" in found((1.0, 0.5, 2.5))
    assert "CPU time: 8.0 (4.0 .. 40.0); floor 10: missed" in found((2.5, 0.5, 5.0))
    text = found((1.0, 1.0, 1.0))
    assert "peak memory: 6.0 (6.0 .. 6.0); floor 5: met" in text
    assert "peak memory, 64 ÷ 8 ranks: 1.25" in text
    assert "| ddptrace | 1.00 | 1.00 | 100 | 64 | 2.00 |" in text


@pytest.mark.long
def test_the_command_measures_all_things_in_every_round(small: Path) -> None:
    need(importlib.util.find_spec("hta"), "HTA (pip install 'ddptrace[hta]')")
    done = CliRunner().invoke(main, ["load", str(small), "--ranks", "2", "--mb", "2", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {name: len(rounds) for name, rounds in told["rounds"].items()} == {INFLATE: 3, OURS: 3, WARM: 3, HTA: 3}
    assert all(one["cpu_s"] > 0 and one["peak_nbytes"] > MB for rounds in told["rounds"].values() for one in rounds)
    assert told["nbytes"][INFLATE] == pytest.approx(4 * MB, rel=0.2)
    assert "round 3 of 3: HTA" in done.stderr


@pytest.mark.long
def test_without_hta_many_ranks_stand_beside_few(small: Path) -> None:
    done = CliRunner().invoke(main, ["load", str(small), "--ranks", "9", "--mb", "1", "--no-hta"])
    assert done.exit_code == 0, done.output
    assert "peak memory, 9 ÷ 8 ranks: " in done.stdout and "HTA" not in done.stdout


def test_a_program_that_is_being_measured_ends_when_the_benchmark_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str]) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_peak_nbytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    assert started[0].wait(timeout=20) == -signal.SIGKILL


def test_a_program_that_is_being_measured_ends_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    # GIVEN a reader that waits for a writer who never comes
    pipe = tmp_path / "never"
    os.mkfifo(pipe)
    program = (
        "import sys; from pathlib import Path; from benchmarks.load import _run\n_run('inflate', [Path(sys.argv[1])])"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(pipe)]) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        wait_for(children.read_text)
        child = Path("/proc", children.read_text().strip())
        wait_for(lambda: len(list(child.glob("task/*"))) > 1)  # it watches the one that started it
        parent.kill()
    wait_for(lambda: not child.exists() or ") Z " in (child / "stat").read_text())


def wait_for(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.02)
