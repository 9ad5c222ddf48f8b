"""How often each command opens the files of records, counted by an audit hook in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

import ddptrace
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.predictor import analyze_with_forecast
from ddptrace.record.directory import write_json
from ddptrace.schema import MANIFEST, SCHEMA_VERSION
from tests.unit.telemetry_records import RUN_ID, Rank

COUNTED: Final = """
import collections, json, os, sys
opened = collections.Counter()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if path.endswith(".bin"):
            opened[os.path.join(*path.split(os.sep)[-2:])] += 1
sys.addaudithook(hook)
from ddptrace.cli import main
try:
    main(sys.argv[1:], standalone_mode=False)
except SystemExit as ended:
    assert not ended.code, ended.code
print("\\n" + json.dumps(opened))
"""
FILES: Final = {f"rank-0000{rank}/records-00000.bin" for rank in range(2)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    ranks = [Rank(folder, number) for number in range(2)]
    for rank in ranks:
        rank.steps(0, 12)
        rank.recorder.close()
    head = {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "zero_unix_ns": time.time_ns(), "world_size": 2}
    write_json(folder / MANIFEST, head)
    return folder


def opened_by(*command: object) -> dict[str, int]:
    argv = [sys.executable, "-c", COUNTED, *map(str, command)]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("command", ["analyze", "advise", "whatif", "traffic", "watch --once"])
def test_records_are_read_once(run: Path, command: str) -> None:
    assert opened_by(*command.split(), run) == dict.fromkeys(FILES, 1)


def test_an_export_reads_records_once(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "telemetry.jsonl"
    assert opened_by("export", run, "--otlp-json", file) == dict.fromkeys(FILES, 1)
    assert file.stat().st_size


def test_a_manifest_without_a_zero_costs_the_first_rank_another_look(run: Path) -> None:
    (run / MANIFEST).unlink()
    assert opened_by("traffic", run) == dict(zip(sorted(FILES), (2, 1), strict=True))


def test_the_forecast_comes_from_the_same_reading(run: Path) -> None:
    result, forecast = analyze_with_forecast(run)
    assert result.to_json_dict() == ddptrace.analyze(run).to_json_dict()
    assert forecast.refusal is None and forecast.advice == ddptrace.advise(run)


def test_traces_of_others_have_no_forecast(tmp_path: Path) -> None:
    add = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    traces = [tmp_path / f"rank-{rank}.json" for rank in range(2)]
    for rank, trace in enumerate(traces):
        trace.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": [add]}))
    for given in (traces[:1], traces):
        result, forecast = analyze_with_forecast(given)
        assert not result.recorded and len(result.ranks) == len(given)
        assert forecast == Forecast()
