"""A full disk ends the record, never the training: a real, small file system is filled."""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from tests.conftest import need


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 9 MB: room for two segments of records and little else."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", disk], capture_output=True, check=False)
    need(mounted.returncode == 0, "mounting a small file system (needs root)")
    yield disk
    subprocess.run(["umount", disk], check=False)


def train(steps: int) -> int:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return steps


def test_when_the_disk_fills_training_goes_on_and_the_finding_says_what_was_lost(small_disk: Path) -> None:
    from ddptrace.capture import session

    with ddptrace.trace(small_disk / "run"):
        train(10)
        recorder = session._current.recorder  # type: ignore[union-attr]
        for number in range(200_000):  # more records than two segments hold
            recorder.event(0xFF, 0, 0, 1, 1)
            if number % 1000 == 0:
                time.sleep(0.001)  # as training does: a segment that fills within a moment has no room for the keeper
        assert train(50) == 50
    result = ddptrace.analyze(small_disk / "run")
    messages = {finding.code: finding.message for finding in result.findings}
    assert "no room for more records" in messages["records-lost"]
    assert "records could not be written" in messages["records-dropped"]
    assert len(result.steps) >= 10
    assert result.ranks[0].clean


def test_a_disk_that_is_full_from_the_start_warns_and_lets_the_training_run(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(7 << 20))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with ddptrace.trace(small_disk / "run") as tracing:
            assert train(5) == 5
            tracing.step()
    assert any("records nothing" in str(w.message) and "No space left" in str(w.message) for w in warned)
