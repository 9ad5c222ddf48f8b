"""One summary of all checks of a run of these tests: `summary.json` and `summary.txt`. Both are written anew after each
check, so that a run that is cut off has lost nothing."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from tests.device.device import CHOSEN

Json = dict[str, Any]
LONGEST = 4000  # characters of one failure, or of one check's facts, in the text


class Summary:
    """A pytest plugin that keeps each check's result, what it found, and why it failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        earlier = folder / "summary.json"  # of the pass before this one
        self._checks: dict[str, Json] = json.loads(earlier.read_text())["checks"] if earlier.exists() else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and report.passed:
            return
        check = self._checks.setdefault(report.nodeid, {"result": "passed", "seconds": 0.0, "found": {}, "why": ""})
        check["seconds"] += report.duration
        check["found"] |= plain(dict(report.user_properties).get("found", {}))
        if not report.passed:
            check["result"] = report.outcome
            check["why"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)
        self._write()

    def _write(self) -> None:
        results = [check["result"] for check in self._checks.values()]
        counts = {result: results.count(result) for result in ("passed", "failed", "skipped")}
        content = {
            "device": CHOSEN,
            "versions": versions(),
            "seconds": round(time.monotonic() - self._began, 1),
            "counts": counts,
            "checks": self._checks,
        }
        for name, text in (("json", json.dumps(content, indent=1, default=str)), ("txt", "\n".join(lines(content)))):
            path = self._folder / f"summary.{name}"
            path.with_suffix(".new").write_text(text + "\n")
            path.with_suffix(".new").replace(path)


def plain(facts: Any) -> Any:
    """Return what a check found as JSON takes it."""
    if isinstance(facts, dict):
        return {key if isinstance(key, str) else str(key): plain(value) for key, value in facts.items()}
    return [plain(one) for one in facts] if isinstance(facts, list | tuple) else facts


def versions() -> Json:
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}


def lines(content: Json) -> list[str]:
    """Return the text: the counts, what failed with its reason, then each check with what it found."""
    counts = ", ".join(f"{count} {result}" for result, count in content["counts"].items())
    said = [f"DEVICE={content['device']}: {counts} in {content['seconds']} s", f"{content['versions']}", ""]
    for name, check in content["checks"].items():
        if check["result"] == "failed":
            said += [f"FAILED {name}", check["why"][-LONGEST:], ""]
    for name, check in content["checks"].items():
        reason = f": {check['why']}" if check["result"] == "skipped" else ""
        said.append(f"{check['result']:8} {check['seconds']:6.1f} s  {name}{reason}")
        said += [f"{'':20}{fact} = {str(value)[:LONGEST]}" for fact, value in check["found"].items()]
    return said
