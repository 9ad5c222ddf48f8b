"""A rank that dies in training leaves a word in the analysis: which collective of the others failed, and of what."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import ddptrace
from ddptrace.capture import session
from tests.programs.peer_death import STEPS
from tests.self_launched import self_launched


@pytest.mark.parametrize(("way", "step"), [("ddp", f" after step {STEPS - 1}:"), ("sync", " on rank 0:")])
def test_the_collective_that_failed_since_its_peer_died_is_named_with_its_error(
    tmp_path: Path, way: str, step: str
) -> None:
    done = self_launched("peer_death.py", tmp_path, way)
    assert done.stdout.split() == ["told", "True", "0", str(-signal.SIGKILL)], done.said
    findings = {finding.code: finding for finding in ddptrace.analyze(tmp_path / "run").findings}
    assert findings["process-died"].where == "rank 1"
    failed = findings["collective-failed"]
    assert (failed.severity, failed.where) == ("error", "rank 0")
    assert failed.message.startswith("all_reduce number") and step in failed.message and "onnection" in failed.message
    assert ".cc:" not in failed.message and "worker" not in failed.message  # Gloo's advice beside it


def test_the_end_of_a_trace_waits_a_moment_for_what_callbacks_still_have_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CALLBACKS_S", 20.0)
    with ddptrace.trace(tmp_path / "run"):
        assert session._current is not None
        due = {1}
        session._current._due.append(due)
        threading.Timer(0.5, due.clear).start()
    assert not due
