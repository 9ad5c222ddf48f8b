"""`python -m benchmarks overhead` with telemetry: the modes that were asked for are measured, and spans are sent."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

import ddptrace
from benchmarks.overhead_costs import Rate, sustained
from benchmarks.overhead_receiver import receiver
from tests.launch import torchrun


@pytest.mark.alone  # the process that exports must have started before the few steps are over
def test_spans_are_made_and_sent_while_steps_are_timed(tmp_path: Path) -> None:
    words = ("--workload", "convnet", "--rounds", 1, "--steps", 2, "--warmup", 1, "--out", tmp_path)
    modes = "exporting thread,companion"
    said = torchrun("short_overhead.py", "overhead", "--modes", modes, *words, timeout_s=240)
    assert "RuntimeWarning" not in said, "nothing was lost on the way"
    (one,) = json.loads((tmp_path / "overhead.json").read_text())["measured"]
    assert set(one["times_ns"]) == {"off", "exporting thread", "companion"}
    assert one["exported"]["spans_per_s"] > 0 and one["exported"]["cpu_ns"] > 0
    log = (tmp_path / "runs" / "companion-0" / "export.log").read_text()
    assert "Error" not in log and "not" not in log.split(), log
    # all that is recorded can be sent, again and again
    assert len(ddptrace.analyze(tmp_path / "runs" / "companion-0").steps) >= 4
    with receiver() as address:
        assert sustained(tmp_path / "runs" / "companion-0", address).spans_per_s > 0


def test_the_receiver_answers_as_a_collector_that_took_everything() -> None:
    with receiver() as address:
        request = urllib.request.Request(f"{address}/v1/traces", data=b"any")
        with urllib.request.urlopen(request) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-protobuf")
            assert answer.read() == b""


def test_a_rate_is_told_in_spans_and_processor_time() -> None:
    assert "3,306 spans a second" in Rate(3306.4, 289_000.0).words() and "289 µs" in Rate(3306.4, 289_000.0).words()
