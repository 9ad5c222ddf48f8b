"""A window ends when Gloo's threads have left its collectives: torch frees their events with the window."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.capture.profiler.windows import ENDING_S
from tests.launch import environment, torchrun
from tests.programs.left_late import BEFORE, STEPS

ACTIVE, TO_THE_END = 2, STEPS
NEARLY_OVER_S, UNDER_WAY_S = ENDING_S / 4, 5 * ENDING_S


def whole(run: Path, left_s: float) -> int:
    """The number of all-reduces whose event lasts until Gloo's thread leaves it."""
    content = (run / "rank-00000/kineto-0.json.gz").read_bytes()
    events = json.loads(gzip.decompress(content))["traceEvents"]
    return sum(event["dur"] / 1e6 >= left_s for event in events if event["name"] == "gloo:all_reduce")


def profiled(run: Path) -> list[int]:
    return [row.step for row in ddptrace.analyze(run).steps if row.profiled and row.rank == 0]


@pytest.mark.parametrize("left_s", [NEARLY_OVER_S, UNDER_WAY_S], ids=["nearly over", "under way"])
def test_a_window_holds_the_end_of_each_of_its_collectives(left_s: float, tmp_path: Path) -> None:
    torchrun("left_late.py", tmp_path / "run", left_s, ACTIVE)
    steps = profiled(tmp_path / "run")
    assert steps[:ACTIVE] == [BEFORE, BEFORE + 1]
    assert len(steps) >= (ACTIVE if left_s < ENDING_S else ACTIVE + 1)
    assert whole(tmp_path / "run", left_s) == len(steps)


def test_a_window_that_must_end_with_the_trace_waits_for_its_collectives(tmp_path: Path) -> None:
    torchrun("left_late.py", tmp_path / "run", UNDER_WAY_S, TO_THE_END)
    assert whole(tmp_path / "run", UNDER_WAY_S) == len(profiled(tmp_path / "run")) == STEPS - BEFORE


def test_a_collective_that_never_ends_keeps_no_window_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptrace.capture.profiler.windows.UNDER_WAY_MAX", 2)
    monkeypatch.setattr(
        "ddptrace.capture.collectives.completions.CollectivesInWindow.are_over", lambda self, patience_s: False
    )
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddptrace.trace(tmp_path / "run", profile=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)):
        for _ in range(STEPS):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert profiled(tmp_path / "run") == [2, 3, 4]


AT_ONCE = """
import ddptrace
from torch.profiler import schedule
from tests.integration.test_profiler_options import train
with ddptrace.trace("run", profile=schedule(wait=0, warmup=0, active=1)):
    train(100)
"""


def test_windows_that_follow_at_once_leave_a_step_between_them(tmp_path: Path) -> None:
    """The range of the optimizer that ends a step is still open then: half of such programs ended with SIGSEGV."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", AT_ONCE], cwd=tmp_path, env=environment(), check=True)
    assert profiled(tmp_path / "run") == list(range(0, 100, 2))
