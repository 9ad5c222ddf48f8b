"""`ddptrace watch` in a real terminal, beside a real training of two ranks: before it begins, while it goes and hangs,
after it ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import ROOT, environment
from tests.watching import (
    PATIENCE_S,
    Terminal,
    Training,
    bucket_rows,
    fits,
    once,
    steps_in,
    terminal_in,
    training_in,
    watching,
)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with terminal_in(tmp_path) as one:
        yield one


def test_a_training_is_watched_from_before_it_begins_until_it_has_ended(terminal: Terminal, tmp_path: Path) -> None:
    # GIVEN somebody who watches before there is anything
    watching(terminal)
    terminal.wait("run is not there yet: waiting for a job to write it")
    # WHEN two ranks train, THEN it is seen
    with training_in(tmp_path) as job:
        _goes_on(terminal)
        _is_of_any_size(terminal)
        _hangs(terminal, job)
        _ends(terminal, job)
    told = once(tmp_path / "run")
    analysed = subprocess.run(
        [sys.executable, "-m", "ddptrace", "analyze", str(tmp_path / "run"), "--json"], env=environment(), cwd=ROOT,
        capture_output=True, check=True,
    )  # fmt: skip
    tables = json.loads(analysed.stdout)
    steps = 1 + max(row["step"] for row in tables["steps"])
    assert f"2 ranks ended · {steps:,} steps" in told
    assert f"run {tables['run_id'][:8]}" in told


def _goes_on(terminal: Terminal) -> None:
    """With buckets and ranks, and steps that become more."""
    text = terminal.wait(r"2 ranks running", r"Typical step", "Buckets", "Ranks", "Findings")
    assert fits(text, 80, 24), text
    assert len(bucket_rows(text)) >= 2, text
    for rank in range(2):
        assert re.search(rf"^  {rank} +running +\d", text, re.M), text
    assert re.match(r"step [\d.]+ ms", text.splitlines()[2]), text
    seen = steps_in(text)
    terminal.wait_until(lambda later: steps_in(later) > seen, f"more than {seen} steps")


def _is_of_any_size(terminal: Terminal) -> None:
    terminal.resize(140, 45)
    terminal.wait_until(lambda text: fits(text, 140, 45) and len(bucket_rows(text)) == 6, "a larger picture")
    terminal.resize(60, 16)
    terminal.wait_until(lambda text: fits(text, 60, 16), "a smaller picture")
    terminal.resize(80, 24)
    terminal.wait_until(lambda text: fits(text, 80, 24), "the first size again")


def _hangs(terminal: Terminal, job: Training) -> None:
    job.flag("hold").touch()
    terminal.wait("no rank has got further for 1", "`ddptrace diagnose run` says who waits")
    job.flag("hold").unlink()
    terminal.wait("2 ranks running")


def _ends(terminal: Terminal, job: Training) -> None:
    """Then so does the watching, by itself; the last picture stays, and keys are seen again."""
    job.end()
    text = terminal.wait(r"left with 0", "ended in order; all of it: `ddptrace analyze run`", r"(?m)^  1 +ended")
    assert "2 ranks ended" in text and "Typical step" in text
    assert job.ranks.statuses(PATIENCE_S) == [0, 0]
    terminal.type("echo as be''fore")
    terminal.wait("as before")
