"""The summary of a run of the tests of devices: nothing that a check finds, or how it ends, loses the other checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.device.summary import Summary


def report(name: str, outcome: Any, found: object = None, why: str = "", when: Any = "call") -> pytest.TestReport:
    properties = [] if found is None else [("found", found)]
    longrepr: Any = ("file", 1, why) if outcome == "skipped" else why
    return pytest.TestReport(name, ("file", 1, name), {}, outcome, longrepr, when, user_properties=properties)


def test_each_check_is_there_with_what_it_found(tmp_path: Path) -> None:
    summary = Summary(tmp_path)
    summary.pytest_runtest_logreport(report("odd", "passed", {"by": {("fsdp", 1): [Path("a"), (1, {2: None})]}}))
    summary.pytest_runtest_logreport(report("failing", "failed", {"seen": 3}, "because of this"))
    summary.pytest_runtest_logreport(report("skipped", "skipped", None, "no GPU", "setup"))
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["counts"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert content["checks"]["odd"]["found"] == {"by": {"('fsdp', 1)": ["a", [1, {"2": None}]]}}
    assert content["checks"]["failing"]["found"] == {"seen": 3}
    text = (tmp_path / "summary.txt").read_text()
    assert "FAILED failing\nbecause of this" in text and "skipped: no GPU" in text and "seen = 3" in text
