"""`ddptrace hta`: HTA's numbers beside ours on real traces, and one line where there is nothing to compare."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Record, need
from tests.launch import environment


@pytest.fixture
def hta() -> None:
    need(importlib.util.find_spec("hta"), "HTA (pip install 'ddptrace[hta]')")


def command(*arguments: object, python: tuple[str, ...] = (), **extra: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *python, "-m", "ddptrace", *map(str, arguments)]
    return subprocess.run(line, env=environment() | extra, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.usefixtures("hta")
def test_each_difference_stands_in_the_table_with_its_rule_in_words(shared_traces: Path) -> None:
    done = command("hta", shared_traces / "ddp-a100")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["0", "overlap", "%", "14.31", "14.31", "15.61", "rounding,", "steps"] in lines
    assert ["idle", "ms", "338.781", "338.781", "503.051"] in lines
    assert "HTA rounds the times of a trace in ns to whole µs" in done.stdout
    assert "HTA leaves out what the last profiler step launches (1,258 events)" in done.stdout
    assert "HTA potential_stragglers: not available: TypeError" in done.stdout
    assert "HTA idle_time_breakdown" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 96


@pytest.mark.usefixtures("hta")
def test_equal_numbers_are_called_equal(shared_traces: Path) -> None:
    done = command("hta", shared_traces / "dlrm-8ranks")
    assert done.returncode == 0
    told = [line.split()[-1] for line in done.stdout.splitlines() if " overlap % " in line]
    assert told == ["equal"] * 8


@pytest.mark.usefixtures("hta")
def test_json_on_stdout_is_the_comparison_and_nothing_else(shared_traces: Path) -> None:
    done = command("hta", shared_traces / "sampled-2of128", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert set(told) == {"version", "ranks", "tables", "failures", "lost"}
    for one in told["ranks"]:
        assert one["hta"] == one["under_its_rules"] != one["ours"]
        assert [applied["rule"] for applied in one["why"]] == ["steps"]


@pytest.mark.usefixtures("hta")
def test_a_run_of_gloo_has_nothing_for_hta_and_says_so(record: Record, tmp_path: Path) -> None:
    record(tmp_path / "run", "ddp.py", "--profile")
    done = command("hta", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Not available from HTA for ranks 0, 1: it judges nothing but a device's work" in " ".join(
        done.stdout.split()
    )


@pytest.mark.usefixtures("hta")
def test_a_run_without_profiler_windows_is_one_line(record: Record, tmp_path: Path) -> None:
    record(tmp_path / "run", "ddp.py")
    done = command("hta", tmp_path / "run")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ") and "holds no profiler file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("hta")
def test_a_damaged_file_is_a_sentence_and_the_other_ranks_stand(shared_traces: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        whole = (shared_traces / f"sampled-2of128/sampled_rank-{rank}.json.gz").read_bytes()
        (tmp_path / f"rank-{rank}.json.gz").write_bytes(whole if rank else whole[: len(whole) // 2])
    done = command("hta", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Not available from HTA for rank 0: EOFError" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if " overlap % " in line] == ["1"]


def test_where_hta_is_not_installed_one_line_says_what_to_install(shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN all packages but HTA
    for package in Path(pytest.__file__).parents[1].iterdir():
        if package.name != "hta" and not package.name.endswith(".pth"):
            (tmp_path / package.name).symlink_to(package)
    path = f"{environment()['PYTHONPATH']}:{tmp_path}"
    # WHEN the command is given
    done = command("hta", shared_traces / "dlrm-8ranks", python=("-S",), PYTHONPATH=path)
    # THEN that is all it says
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: HTA is not installed: pip install 'ddptrace[hta]'\n"
