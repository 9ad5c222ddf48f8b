"""Ranks that the tests fork find what torchrun gives to ranks, and none outlives its test."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_bench_ends import is_gone, wait_for
from tests.launch import PROGRAMS, ROOT, command, environment, torchrun
from tests.ranks import Ranks

PROGRAM = "as_started.py"


def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def all_are_gone(folder: Path) -> bool:
    return all(is_gone(int((folder / f"{rank}.pid").read_text())) for rank in range(2))


def test_a_forked_rank_finds_what_a_rank_of_torchrun_finds(tmp_path: Path) -> None:
    forked, warm, started = tmp_path / "forked", tmp_path / "warm", tmp_path / "started"
    for folder in (forked, warm, started):
        folder.mkdir()
    done = subprocess.run(command(PROGRAM, started), env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    torchrun(PROGRAM, forked, has_dynamo=False)
    torchrun(PROGRAM, warm)
    for ours, other, theirs in zip(found(forked), found(warm), found(started), strict=True):
        assert ours == theirs
        assert other == theirs | {"dynamo": True}


def test_what_is_set_for_a_test_is_set_for_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(PROGRAM, tmp_path)
    monkeypatch.setenv("PLANTED", "1")
    monkeypatch.chdir(tmp_path)
    before = found(tmp_path)
    torchrun(PROGRAM, tmp_path)
    for one, other in zip(before, found(tmp_path), strict=True):
        assert set(other["names"]) - set(one["names"]) == {"PLANTED"}
        assert other["cwd"] == os.fspath(tmp_path)


def test_a_rank_that_fails_fails_the_test_with_what_it_said_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ValueError: planted"):
        torchrun(PROGRAM, tmp_path, "wrong")
    wait_for(lambda: all_are_gone(tmp_path), "a rank goes on", seconds=20)


def test_ranks_that_are_not_done_in_time_are_ended_and_the_next_ones_are_not_disturbed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not done after 3 s"):
        torchrun(PROGRAM, tmp_path, "late", timeout_s=3)
    wait_for(lambda: all_are_gone(tmp_path), "a rank goes on", seconds=20)
    # WHEN there is another order
    torchrun(PROGRAM, tmp_path)
    assert len(found(tmp_path)) == 2


def test_ranks_that_speak_at_once_cut_no_line_of_each_other_even_where_python_does_not_buffer() -> None:
    lines = 2000
    with closing(Ranks(environment() | {"PYTHONUNBUFFERED": "1"}, ROOT)) as ranks:
        with ranks.started([str(PROGRAMS / "talking.py"), str(lines)], 2, environment(), to_the_end=True) as job:
            assert job.statuses(60) == [0, 0]
    for said in (job.stdout, job.stderr):
        assert Counter(said.splitlines()) == {f"rank {rank} says one whole line": lines for rank in range(2)}
