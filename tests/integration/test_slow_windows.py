"""Profiler windows on occasion: a slowdown, or `ddptrace profile`, opens one of the same steps on all ranks."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.cli import main
from ddptrace.record.directory import read_json
from ddptrace.schema import MANIFEST, PROFILE_ANSWER, PROFILE_REQUEST, rank_folder
from tests.launch import PROGRAMS, environment, server, torchrun

PROGRAM = "slow_windows.py"
SLOW_AT = 36


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slowed")
    options = ("--slow-at", SLOW_AT, "--windows", 1, "--steps", 600, "--save", folder / "traced")
    torchrun(PROGRAM, folder / "run", *options)
    return folder


def profiled(result: Result) -> dict[int, list[int]]:
    """By rank, the steps under the profiler."""
    found: dict[int, list[int]] = {row.rank: [] for row in result.ranks}
    for row in result.steps:
        if row.profiled:
            found[row.rank].append(row.step)
    return found


def messages(result: Result, code: str) -> dict[str, str]:
    return {finding.where: finding.message for finding in result.findings if finding.code == code}


def test_a_slowdown_opens_a_window_of_the_same_steps_on_every_rank(slowed: Path) -> None:
    result = ddptrace.analyze(slowed / "run")
    steps = profiled(result)
    assert steps[0] == steps[1] == list(range(steps[0][0], steps[0][0] + 3))
    [message] = messages(result, "steps-slower").values()
    told = re.search(r"up to step (\d+).* window of steps (\d+), \d+ and (\d+) on all ranks$", message)
    assert told, message
    noticed, first, last = map(int, told.groups())
    assert noticed < first
    assert (first, last) == (steps[0][0], steps[0][-1])
    assert messages(result, "window-missed") == {}
    assert json.loads((slowed / "run" / MANIFEST).read_text())["profile"] is False


def test_the_window_changes_no_bit_of_what_is_trained(slowed: Path) -> None:
    steps = sum(row.rank == 0 for row in ddptrace.analyze(slowed / "run").steps)
    torchrun(PROGRAM, slowed / "run", "--untraced", "--steps", steps, "--save", slowed / "plain")
    for rank in range(2):
        traced, plain = (torch.load(slowed / f"{name}-{rank}.pt") for name in ("traced", "plain"))
        assert all(torch.equal(one, other) for one, other in zip(traced, plain, strict=True))


def test_of_four_ranks_those_that_were_named_record_the_same_steps(tmp_path: Path) -> None:
    options = ("--slow-at", SLOW_AT, "--ranks", "0,3", "--windows", 1, "--steps", 300, "--factor", 2)
    torchrun(PROGRAM, tmp_path / "run", *options, ranks=4)
    result = ddptrace.analyze(tmp_path / "run")
    steps = profiled(result)
    assert len(steps[0]) == 3
    assert steps == {0: steps[0], 1: [], 2: [], 3: steps[0]}
    [message] = messages(result, "steps-slower").values()
    assert message.endswith("on ranks 0 and 3")


def test_steady_steps_open_no_window(tmp_path: Path) -> None:
    torchrun(PROGRAM, tmp_path / "run", "--factor", 1000)
    result = ddptrace.analyze(tmp_path / "run")
    assert profiled(result) == {0: [], 1: []}
    assert not {finding.code for finding in result.findings} & {"steps-slower", "window-asked", "window-missed"}


def test_a_rank_that_learns_of_a_window_too_late_says_so_and_no_rank_waits_for_it(tmp_path: Path) -> None:
    torchrun(PROGRAM, tmp_path / "run", "--slow-at", SLOW_AT, "--deaf", "--steps", 160)
    result = ddptrace.analyze(tmp_path / "run")
    steps = profiled(result)
    assert steps[0] == []
    assert len(steps[1]) == 3
    assert "except 1 of 2 that did not answer" in messages(result, "steps-slower")["rank 1"]
    assert "was past their begin" in messages(result, "window-missed")["rank 0"]
    assert {row.steps for row in result.ranks} == {160}


def test_a_rank_that_is_killed_within_the_window_leaves_its_records(tmp_path: Path) -> None:
    argv = [str(PROGRAMS / PROGRAM), str(tmp_path / "run"), "--slow-at", str(SLOW_AT), "--kill-in-window"]
    statuses, said = server().statuses([*argv, "--steps", "600"], 2, environment(), 120, to_the_end=True)
    assert statuses is not None, said
    assert statuses[1] == signal.SIGKILL
    result = ddptrace.analyze(tmp_path / "run")
    assert "process-died" in {finding.code for finding in result.findings if finding.where == "rank 1"}
    [message] = messages(result, "steps-slower").values()
    told = re.search(r"window of steps (\d+),", message)
    assert told
    assert max(row.step for row in result.steps if row.rank == 1) >= int(told[1]) - 2


def test_a_running_job_is_asked_for_a_window_by_another_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = [str(PROGRAMS / PROGRAM), str(run), "--on-request", "--windows", "1", "--steps", "20000"]
    with server().started(argv, 2, environment(), to_the_end=False) as job:
        until = time.monotonic() + 60
        while not all((run / rank_folder(rank) / "meta.json").exists() for rank in (0, 1)):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert read_json(run / MANIFEST)
        asked = CliRunner().invoke(main, ["profile", str(run), "--steps", "2"])
        assert job.statuses(60) == [0, 0]
    assert asked.exit_code == 0, asked.output
    told = re.fullmatch(
        r"2 of 2 ranks will profile steps (\d+) and (\d+) when training comes there\. Then: .*\n", asked.stdout
    )
    assert told, asked.stdout
    result = ddptrace.analyze(run)
    steps = list(map(int, told.groups()))
    assert profiled(result) == {0: steps, 1: steps}
    [message] = messages(result, "window-asked").values()
    assert message.endswith(f"the window of steps {steps[0]} and {steps[1]} on all ranks")
    assert not [name for name in (PROFILE_REQUEST, PROFILE_ANSWER) if (run / name).exists()]
    again = CliRunner().invoke(main, ["profile", str(run)])
    assert again.exit_code == 1
    assert "has ended" in again.stderr
