"""`ddptrace analyze` on a real run: the summary, the files, the JSON, and one line where something is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddptrace
from tests.command_line import ddptrace_says
from tests.conftest import Record
from tests.launch import environment

HEAD_KEYS = {"schema", "run_id", "zero_unix_ns", "ranks", "steps", "buckets", "collectives", "findings"}
STEP_KEYS = {
    "rank", "step", "wall_ns", "window_ns", "compute_ns", "comm_ns", "hidden_ns", "exposed_comm_ns",
    "exposed_memory_ns", "idle_ns", "overlap_ratio", "evidence",
}  # fmt: skip
BUCKET_KEYS = {
    "rank", "step", "backward", "reducer", "layout", "index", "nbytes", "first_ready_at_ns", "ready_at_ns",
    "launch_at_ns", "exec_start_at_ns", "exec_end_at_ns", "wait_ns", "comm_ns", "hidden_ns", "exposed_ns",
    "exposed_charged_ns", "evidence", "parameters",
}  # fmt: skip
FINDING_KEYS = {"code", "severity", "where", "message"}


@pytest.fixture(scope="module")
def recorded(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", "ddp.py", "--profile")


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled."""
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ddptrace", *map(str, arguments)]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def test_the_summary_is_printed_and_the_files_are_written(run: Path) -> None:
    done = command("analyze", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Typical step" in done.stdout
    for name in ("analysis.json", "trace.json.gz", "report.html"):
        assert (run / "analysis" / name).stat().st_size > 0
        assert str(run / "analysis" / name) in done.stdout
    written = {"analysis.json", "cache", "report.html", "trace.json.gz"}
    assert {path.name for path in (run / "analysis").iterdir()} <= written


def test_the_summary_is_there_before_the_files(run: Path) -> None:
    # GIVEN a folder that cannot be written to
    (run / "analysis").write_text("not a folder")
    # WHEN both go to one place
    line = [sys.executable, "-m", "ddptrace", "analyze", str(run)]
    done = subprocess.run(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    # THEN what the run needed does not wait for what is written
    assert 0 <= done.stdout.index("Typical step") < done.stdout.index("Cannot write")


@pytest.mark.parametrize("left_out", [("--no-report",), ("--no-trace", "--no-report"), ("--no-trace", "--json")])
def test_files_that_nobody_wants_are_not_written(run: Path, left_out: tuple[str, ...]) -> None:
    done = ddptrace_says("analyze", run, "--output", run / "out", *left_out)
    assert done.returncode == 0
    files = {"--no-report": "report.html", "--no-trace": "trace.json.gz"}
    wanted = {"analysis.json", *(file for option, file in files.items() if option not in left_out)}
    assert {path.name for path in (run / "out").iterdir()} - {"cache"} == wanted


def test_json_on_stdout_is_the_tables_and_nothing_else(run: Path) -> None:
    done = command("analyze", run, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told == json.loads((run / "analysis" / "analysis.json").read_text())
    result = ddptrace.analyze(run)
    assert told == json.loads(json.dumps(result.to_json_dict()))
    assert set(told) >= HEAD_KEYS
    assert set(told["steps"][0]) >= STEP_KEYS
    assert set(told["buckets"][0]) >= BUCKET_KEYS
    assert set(told["findings"][0]) == FINDING_KEYS


def test_what_ddptrace_cannot_see_is_told_in_tables_and_report_as_the_run_itself_says(run: Path) -> None:
    manifest = run / "manifest.json"
    spots = json.loads(manifest.read_text())["blind_spots"]
    assert any("CUDA graph" in spot for spot in spots)
    assert any("TorchScript" in spot for spot in spots), "those of remote calls too"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"blind_spots": [*spots, "a <b>planted</b> one"]})
    )
    told = json.loads(command("analyze", run, "--json").stdout)
    assert told["blind_spots"] == [*spots, "a <b>planted</b> one"]
    assert "<li>a &lt;b&gt;planted&lt;/b&gt; one</li>" in (run / "analysis" / "report.html").read_text()


def test_a_run_that_cannot_be_written_to_is_still_told(run: Path) -> None:
    # GIVEN a place for the files that is none
    (run / "analysis").write_text("in the way")
    done = command("analyze", run)
    # THEN the summary is there, and one sentence on stderr
    assert done.returncode == 0
    assert "Typical step" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "Cannot write to" in done.stderr
    # AND JSON stays JSON
    assert json.loads(command("analyze", run, "--json").stdout)["run_id"]


def test_a_mistake_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = command("analyze", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = ["torch", "plotly", "numpy", "msgspec", "pandas", "opentelemetry"]
    code = f"import sys, ddptrace.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_analyzing_needs_neither_torch_nor_opentelemetry(run: Path) -> None:
    code = "import sys, ddptrace.cli\ntry: ddptrace.cli.main()\nfinally: "
    code += "print([n for n in ('torch', 'opentelemetry', 'pandas') if n in sys.modules], file=sys.stderr)"
    line = [sys.executable, "-c", code, "analyze", str(run)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_help_lists_the_commands() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "analyze" in done.stdout
