"""Where a device computes and no profiler window saw it, the host knows what it launched and nothing more: nothing else
is told, neither by the tables nor by anything made of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.render.words import UNSEEN
from ddptrace.telemetry.metrics.totals import Totals
from ddptrace.telemetry.rows import of_result
from tests import perfetto
from tests.launch import torchrun
from tests.sums import told_by

STEPS = 8
PARTITION = ("compute_ns", "comm_ns", "hidden_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "overlap_ratio")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("meta")
    found = {name: folder / name for name in ("always", "windows")}
    torchrun("on_meta.py", found["always"], ranks=1)
    torchrun("on_meta.py", found["windows"], "--profile", ranks=1)
    return found


@pytest.fixture(scope="module")
def recorded(runs: dict[str, Path]) -> RankRun:
    return read_run(runs["always"]).ranks[0]


@pytest.fixture(scope="module", params=["always", "windows"])
def result(runs: dict[str, Path], request: pytest.FixtureRequest) -> Result:
    return ddptrace.analyze(runs[request.param])


def said(*command: object) -> str:
    argv = [sys.executable, "-m", "ddptrace", *map(str, command)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return " ".join((done.stdout + done.stderr).split())


def test_every_call_says_that_it_is_a_devices_and_none_that_it_is_over(recorded: RankRun) -> None:
    assert len(recorded.calls) > 9 * (STEPS - 1) and len(recorded.hooks) == 1
    assert all(call.on_device and call.done_at_ns is None for call in recorded.calls)
    assert recorded.hooks[0].done_at_ns is None
    assert sum(len(call.waits) for call in recorded.calls) == 9 * (STEPS - 1)  # by which a stream waits


def test_the_tables_tell_what_the_host_did_and_nothing_of_the_device(result: Result) -> None:
    assert len(result.steps) == STEPS and not result.blame and not result.critical_path
    for row in result.steps:
        assert {getattr(row, name) for name in (*PARTITION, "evidence")} == {None} and not row.profiled
        assert row.data_ns + row.forward_ns + row.backward_ns + row.optimizer_ns + row.other_ns == row.wall_ns
    for call in result.collectives:
        measured = (call.exec_start_at_ns, call.comm_ns, call.hidden_ns, call.exposed_charged_ns, call.evidence)
        assert set(measured) == {None} and call.on_device
    (bucket,) = result.buckets
    assert (bucket.comm_ns, bucket.hidden_ns, bucket.exposed_ns, bucket.wait_ns, bucket.done_at_ns) == (None,) * 5


def test_one_finding_says_so_and_what_to_do(runs: dict[str, Path]) -> None:
    for name, words in (("always", "profile="), ("windows", "ProfilerActivity.CUDA for a CUDA device")):
        findings = {one.code: one.message for one in ddptrace.analyze(runs[name]).findings}
        assert words in findings["device-unseen"] and "which the host only launches" in findings["device-unseen"]
        assert not findings.keys() & {"coarse-compute", "approximate-overlap", "unknown-exec", "well-hidden"}


def test_terminal_report_and_trace_say_so_too(runs: dict[str, Path]) -> None:
    told = said("analyze", runs["always"])
    assert UNSEEN in told and "hidden behind" not in told
    report = (runs["always"] / "analysis" / "report.html").read_text()
    assert (
        UNSEEN in report
        and "compute: not seen" in report
        and "When the rank computed and communicated is unknown in" in report
    )
    (asked,) = perfetto.ask(
        runs["always"] / "analysis" / "trace.json.gz",
        steps="select count(*) from slice where name glob 'step *'",
    ).values()
    assert asked[0][0] >= STEPS
    tables = json.loads((runs["always"] / "analysis" / "analysis.json").read_text())
    assert tables["steps"] and {row["compute_ns"] for row in tables["steps"]} == {None}


def test_nothing_of_it_is_counted_or_compared(runs: dict[str, Path], result: Result) -> None:
    totals = Totals()
    for rows in of_result(result):
        totals.add(rows)
    names = {key[0] for key in told_by(totals)}
    assert "ddptrace.step.duration" in names and "ddptrace.phase.time" in names
    assert not names & {"ddptrace.breakdown.time", "ddptrace.comm.time", "ddptrace.comm.overlap_ratio"}
    diff = said("diff", runs["always"], runs["windows"], "--json")
    kinds = {change["kind"] for change in json.loads(diff)["changes"]}
    assert kinds == {"step", "phase"}
    assert "trained on a GPU" in said("whatif", runs["always"])
