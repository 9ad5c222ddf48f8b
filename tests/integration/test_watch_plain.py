"""`ddptrace watch` where the output is no terminal, and of what is no run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddptrace.schema import MANIFEST, Kind, StepEnd
from tests.command_line import ddptrace_says
from tests.conftest import need
from tests.launch import ROOT, environment
from tests.programs.clocked import FAKETIME
from tests.unit.telemetry_records import STEP_NS, Rank, write_manifest
from tests.watching import WATCH, training_in


def test_on_a_pipe_it_prints_plain_pages_until_it_is_ended(tmp_path: Path) -> None:
    lines = []
    with (
        training_in(tmp_path) as job,
        subprocess.Popen(
            [*WATCH, str(job.run)], env=environment() | {"COLUMNS": "70"}, cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as watch,
    ):
        for line in watch.stdout or ():
            lines.append(line.rstrip("\n"))
            if "Typical step" in line:
                job.end()
    assert watch.returncode == 0
    assert "ended in order" in "\n".join(lines)
    assert sum(line.startswith("ddptrace watch") for line in lines) >= 2
    assert max(map(len, lines)) <= 70 and "\x1b" not in "".join(lines)


@pytest.mark.parametrize("off_s", [-300, 300])
def test_who_watches_by_a_wrong_clock_sees_ranks_run_and_fall_silent(off_s: int, tmp_path: Path) -> None:
    need(FAKETIME.is_file(), f"{FAKETIME} (apt-get install faketime)")
    wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{off_s:+}s"}
    with (
        training_in(tmp_path) as job,
        subprocess.Popen(
            [*WATCH, str(job.run)], env=environment() | wrong, cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as watch,
    ):
        running = silent = 0
        for line in watch.stdout or ():
            running += "2 ranks running" in line and "step" in line
            silent += "no rank has got further for" in line
            if running == 2:  # by the first there is nothing yet to tell its clock from the ranks'
                job.flag("hold").touch()
            if running >= 2 and silent:
                watch.kill()
    assert running >= 2 and silent


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run([*WATCH, str(tmp_path / "file")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {tmp_path / 'file'} is a file; give the directory that ddptrace.trace writes to\n"


def test_what_is_not_there_cannot_be_shown_once(tmp_path: Path) -> None:
    argv = [*WATCH, str(tmp_path / "nosuch"), "--once"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    nosuch = tmp_path / "nosuch"
    assert done.stderr == f"Error: {nosuch} does not exist; give the directory that ddptrace.trace writes to\n"


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_a_folder_without_a_run_is_told_at_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = ddptrace_says("watch", tmp_path, *options)
    assert (done.returncode, done.stdout) == (1, "")
    expected = f"{tmp_path} holds no run; give the directory that ddptrace.trace writes to, or start the job first"
    assert done.stderr == f"Error: {expected}\n"


def test_a_paper_without_width_or_none_at_all_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{}")
    argv = [*WATCH, str(tmp_path), "--once"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment() | {"COLUMNS": "0"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "but no rank has recorded anything yet" in " ".join(done.stdout.split())
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *argv]
    done = subprocess.run(closed, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_damaged_step_number_does_not_keep_it_busy_for_ever(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    write_manifest(tmp_path)
    rank.steps(0, 3)
    rank.recorder.event(Kind.STEP, StepEnd.OPTIMIZER, 0, rank.begin + 4 * STEP_NS, rank.begin + 5 * STEP_NS, 1 << 44)
    rank.step(6)  # whose collectives are in no step
    rank.recorder.close()
    argv = [*WATCH, str(tmp_path), "--once"]
    done = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "Typical step" in done.stdout
