"""`ddptrace diff` on real runs of two Gloo ranks, of which some wait 40 ms longer for one bucket."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import ddptrace
from ddptrace.errors import DdptraceError
from tests.command_line import ddptrace_says
from tests.launch import ROOT, torchrun

pytest_plugins = ["pytester"]
RUNS, BUCKET, EXTRA_MS = 4, 1, 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`before/01` … and `after/01` …, made in turns."""
    folder = tmp_path_factory.mktemp("runs")
    for turn in range(1, RUNS + 1):
        for side, extra_ms in (("before", 0), ("after", EXTRA_MS)):
            (folder / side).mkdir(exist_ok=True)
            torchrun("compared.py", folder / side / f"{turn:02d}", BUCKET, extra_ms)
    return folder


def command(*args: object) -> subprocess.CompletedProcess[str]:
    return ddptrace_says("diff", *args)


@pytest.fixture(scope="module")
def told(runs: Path) -> dict[str, Any]:
    done = command(runs / "before", runs / "after", "--json", "-o", runs / "page")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_step_is_surely_longer_by_about_what_was_planted(told: dict[str, Any]) -> None:
    (step,) = (row for row in told["changes"] if row["kind"] == "step")
    assert step["is_sure"]
    assert 20e6 < step["low_ns"] + (step["high_ns"] - step["low_ns"]) / 2 < 60e6
    assert (told["basis"], told["units"]) == ("runs", [RUNS, RUNS])


def test_the_bucket_that_caused_it_is_named(told: dict[str, Any]) -> None:
    assert told["bucket"]["index"] == BUCKET
    assert told["bucket"]["is_sure"] and told["bucket"]["change_ns"] > 30e6


def test_parts_and_phases_add_up_to_the_change_of_the_step(told: dict[str, Any]) -> None:
    changes = {kind: sum(row["change_ns"] for row in told["changes"] if row["kind"] == kind)
               for kind in ("step", "part", "phase")}  # fmt: skip
    assert changes["part"] == pytest.approx(changes["step"], abs=8)
    assert changes["phase"] == pytest.approx(changes["step"], abs=8)


def test_runs_of_one_program_were_set_up_alike(told: dict[str, Any]) -> None:
    assert told["settings"] == []


def test_the_terminal_says_so_first_and_a_page_is_written(runs: Path, told: dict[str, Any]) -> None:
    said = command(runs / "before", runs / "after").stdout.split("\n\n")
    assert "(4 runs) →" in said[0].replace("\n", " ")
    assert re.match(r"The step takes [\d.]+ ms longer \(\+\d+ %, 95 % \+", said[1])
    assert f"Bucket {BUCKET} of reducer 0 communicates" in said[1].replace("\n", " ")
    assert {path.name for path in (runs / "page").iterdir()} == {"diff.html", "diff.md", "diff.json"}
    assert json.loads((runs / "page" / "diff.json").read_text())["changes"] == told["changes"]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["step>10%"], 3), (["step>10%", "data>1ms"], 3), (["exposed>10ms"], 3), (["bucket>10ms"], 3),
        (["step>10s"], 0), (["bucket>1000%"], 0),
    ],
)  # fmt: skip
def test_the_exit_code_tells_whether_a_limit_is_exceeded(runs: Path, limits: list[str], code: int) -> None:
    options = [part for limit in limits for part in ("--fail-on", limit)]
    done = command(runs / "before", runs / "after", *options)
    assert done.returncode == code, done.stderr
    assert (f"{limits[0]}: exceeded by" in done.stderr) == (code == 3)


def test_a_junit_file_has_a_test_for_each_limit_and_says_why_one_failed(runs: Path, tmp_path: Path) -> None:
    limits = ("--fail-on", "step>10%", "--fail-on", "step>10s")
    assert command(runs / "before", runs / "after", *limits, "--junit", tmp_path / "junit.xml").returncode == 3
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    told = {case.get("name"): case.findtext("failure") for case in suite.iter("testcase")}
    assert told["step>10s"] is None and "The step takes" in (told["step>10%"] or "")


@pytest.mark.parametrize(("limits", "code"), [("step>10%\nexposed>1s\n", 3), ("step>10s", 0)])
def test_the_steps_of_the_github_action_fail_the_job_and_write_its_summary(
    runs: Path, tmp_path: Path, limits: str, code: int
) -> None:
    # GIVEN the environment that GitHub gives a step
    (step,) = (one for one in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"] if "id" in one)
    assert step["env"].keys() == {"BEFORE", "AFTER", "LIMITS", "OUTPUT"}
    given = {"BEFORE": runs / "before", "AFTER": runs / "after", "LIMITS": limits, "OUTPUT": tmp_path / "out"}
    files = {f"GITHUB_{name}": tmp_path / name for name in ("OUTPUT", "STEP_SUMMARY")}
    environ = os.environ | {name: str(value) for name, value in (given | files).items()}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    # WHEN its command runs in the shell that GitHub takes
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(shell, env=environ, capture_output=True, text=True, check=False)
    # THEN
    assert done.returncode == code, done.stderr
    assert "# What changed" in (tmp_path / "STEP_SUMMARY").read_text()
    assert (tmp_path / "OUTPUT").read_text() == f"junit={tmp_path / 'out'}/junit.xml\n"
    assert (tmp_path / "out" / "junit.xml").is_file()


def test_the_pytest_fixture_fails_a_test_whose_runs_became_slower(runs: Path, pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["ddptrace.integrations.pytest"]')
    sides = f"{str(runs / 'before')!r}, {str(runs / 'after')!r}"
    pytester.makepyfile(
        f"""
        def test_step(ddptrace_not_slower):
            ddptrace_not_slower({sides}, "step>10%")

        def test_within_its_limit(ddptrace_not_slower):
            assert ddptrace_not_slower({sides}, "step>10s").is_changed
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["The step takes*", "step>10%: exceeded by*"])


def test_what_got_faster_exceeds_no_limit(runs: Path) -> None:
    assert command(runs / "after", runs / "before", "--fail-on", "step>0%").returncode == 0


def test_one_run_a_side_is_compared_without_a_verdict_and_decides_nothing(runs: Path) -> None:
    done = command(runs / "before" / "01", runs / "after" / "01")
    assert done.returncode == 0
    assert "Between these runs the step differs by +" in done.stdout
    assert "one run per side, so the variation between equal runs is unknown" in done.stdout
    assert "sure" not in done.stdout
    asked = command(runs / "before" / "01", runs / "after" / "01", "--fail-on", "step>5%")
    assert asked.returncode == 1
    assert "'step>5%' cannot be checked with 2 runs" in asked.stderr


def test_the_library_says_the_same_of_globs_and_lists(runs: Path, told: dict[str, Any]) -> None:
    found = ddptrace.diff(runs / "before" / "*[0-9]", sorted((runs / "after").iterdir()))
    assert [row.change_ns for row in found.changes] == [row["change_ns"] for row in told["changes"]]
    assert len(found.changes.to_dicts()) == len(told["changes"])


def test_a_run_that_is_given_twice_is_refused(runs: Path) -> None:
    with pytest.raises(DdptraceError, match=r"is the same run as .*give each run once"):
        ddptrace.diff(runs / "before", [runs / "after", runs / "before" / "01"])


def test_runs_are_made_in_turns_into_the_place_that_the_command_is_told(runs: Path, tmp_path: Path) -> None:
    # GIVEN commands that leave a run, one in {run}, one in $DDPTRACE_OUT, and say on what turn they were
    sides = [tmp_path / "a", tmp_path / "b"]
    note = f"; echo $DDPTRACE_OUT >> {shlex.quote(str(tmp_path / 'order'))}"
    commands = [
        f"cp -r {runs / 'before'}/$(basename $DDPTRACE_OUT) {{run}}{note}",
        f"cp -r {runs / 'after'}/$(basename {{run}}) $DDPTRACE_OUT{note}",
    ]
    # WHEN two turns are asked for
    done = command(*sides, "--repeat", 2, "--run-before", commands[0], "--run-after", commands[1])
    # THEN the sides take turns at being first, and are compared
    assert done.returncode == 0, done.stderr
    made = [Path(line).relative_to(tmp_path) for line in (tmp_path / "order").read_text().split()]
    assert list(map(str, made)) == ["a/01", "b/01", "b/02", "a/02"]
    assert "(2 runs) →" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--run-before", "exit 3", "--run-after", "true"], "`exit 3` ended with exit code 3; its output is in"),
        (["--run-before", "true", "--run-after", "true"], "`true` wrote no run to"),
    ],
)
def test_a_command_that_fails_or_leaves_no_run_is_told(tmp_path: Path, given: list[str], reason: str) -> None:
    done = command(tmp_path / "a", tmp_path / "b", "--repeat", 1, *given)
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
    again = command(tmp_path / "a", tmp_path / "b", "--repeat", 1, *given)
    assert "is not empty" in again.stderr


def test_options_that_go_together_and_unknown_runs_are_told(tmp_path: Path) -> None:
    assert "must be given together" in command(tmp_path, tmp_path, "--repeat", 2).stderr
    assert command(tmp_path / "none", tmp_path / "none").returncode == 1
    done = command(tmp_path, tmp_path, "--fail-on", "speed<3")
    assert (done.returncode, "is no limit: write QUANTITY>AMOUNT" in done.stderr) == (1, True)


def test_comparing_needs_no_torch(runs: Path) -> None:
    program = "import sys, ddptrace; ddptrace.diff(*sys.argv[1:]); sys.exit('torch' in sys.modules)"
    argv = [sys.executable, "-c", program, str(runs / "before"), str(runs / "after")]
    assert subprocess.run(argv, env=os.environ, check=False).returncode == 0
