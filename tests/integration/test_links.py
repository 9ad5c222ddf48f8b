"""Links in a run directory: what is read through them harms nobody, and nothing is ever written through one."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import ddptrace
from ddptrace.cli import main
from ddptrace.cli.view import trace_of
from ddptrace.load.sources import find_traces
from ddptrace.record.directory import write_json
from ddptrace.render.whole_file import whole_file
from ddptrace.telemetry.companion.companion import APPENDING, LOG
from tests.conftest import Record


@pytest.fixture(scope="module")
def recorded(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "run", "ddp.py", "--profile")


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled, with a neighbour that is nobody's business."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("precious\n")
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def home(run: Path) -> dict[str, str]:
    """What lies in the neighbour."""
    return {path.name: path.read_text() for path in (run.parent / "home").iterdir()}


def said(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_a_run_directory_is_read_through_a_link(run: Path) -> None:
    link = run.parent / "link"
    link.symlink_to(run)
    assert list(ddptrace.analyze(link).steps) == list(ddptrace.analyze(run).steps)
    assert said("analyze", link).exit_code == 0
    assert (run / "analysis" / "report.html").is_file()


def test_a_rank_may_lie_elsewhere(run: Path) -> None:
    right = list(ddptrace.analyze(run).steps)
    shutil.move(run / "rank-00001", run.parent / "far")
    (run / "rank-00001").symlink_to(run.parent / "far")
    assert list(ddptrace.analyze(run).steps) == right


@pytest.mark.parametrize("command", ["analyze", "view", "figures"])
def test_an_analysis_folder_that_is_a_link_is_refused_with_what_to_do(run: Path, command: str) -> None:
    (run / "analysis").symlink_to(run.parent / "home")
    done = said(command, run)
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.startswith(
        f"Error: {run}/analysis is a link to {run.parent}/home, and ddptrace does not write through links"
    )
    assert "--output" in done.stderr and done.stderr.count("\n") == 1
    assert home(run) == {".bashrc": "precious\n"}


def test_a_folder_that_the_user_names_may_be_a_link(run: Path) -> None:
    (run.parent / "mine").mkdir()
    (run.parent / "link").symlink_to(run.parent / "mine")
    assert said("analyze", run, "-o", run.parent / "link").exit_code == 0
    assert (run.parent / "mine" / "report.html").is_file()


@pytest.mark.parametrize("name", ["report.html", "trace.json.gz", "analysis.json", ".report.html.PID"])
def test_a_link_in_place_of_what_is_written_is_replaced_and_not_followed(run: Path, name: str) -> None:
    (run / "analysis").mkdir()
    (run / "analysis" / name.replace("PID", str(os.getpid()))).symlink_to(run.parent / "home" / ".bashrc")
    assert said("analyze", run).exit_code == 0
    assert home(run) == {".bashrc": "precious\n"}
    assert not any(path.is_symlink() for path in (run / "analysis").iterdir())


def test_a_cache_that_is_a_link_is_not_written(run: Path) -> None:
    (run / "analysis").mkdir()
    (run / "analysis" / "cache").symlink_to(run.parent / "home")
    assert said("analyze", run).exit_code == 0
    assert home(run) == {".bashrc": "precious\n"}


def test_figures_are_not_written_through_a_link(run: Path) -> None:
    (run / "analysis").mkdir()
    (run / "analysis" / "figures").symlink_to(run.parent / "home")
    done = said("figures", run)
    assert done.exit_code == 1 and "figures is a link to" in done.stderr
    assert home(run) == {".bashrc": "precious\n"}


def test_view_shows_no_file_that_a_link_leads_to(run: Path) -> None:
    """A browser could send it anywhere."""
    assert said("analyze", run).exit_code == 0
    (run / "analysis" / "trace.json.gz").unlink()
    (run / "analysis" / "trace.json.gz").symlink_to(run.parent / "home" / ".bashrc")
    trace, _ = trace_of(run)
    assert not trace.is_symlink() and json.loads(gzip.decompress(trace.read_bytes()))["otherData"]["tool"] == "ddptrace"
    for file in (run / "analysis").iterdir():
        if file.is_file():
            (run / file.name).symlink_to(run.parent / "home" / ".bashrc")
    assert trace_of(run)[0] == trace


@pytest.mark.timeout(60)
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/full", "/proc/self/mem", "/dev/ptmx", "kineto-0.json.gz", None])
def test_a_profiler_file_that_is_none_costs_its_window_alone(run: Path, target: str | None) -> None:
    file = run / "rank-00000" / "kineto-0.json.gz"
    file.unlink()
    os.mkfifo(file) if target is None else file.symlink_to(target)
    result = ddptrace.analyze(run)
    assert len(result.steps) == 12
    assert [one.where for one in result.findings if one.code == "window-unreadable"] == ["rank 0, kineto-0.json.gz"]


@pytest.mark.parametrize("name", ["../../home/.bashrc", "/etc/hostname", "../rank-00001/kineto-0.json.gz", ".", "a\0b"])
def test_a_window_is_read_from_the_ranks_own_folder_alone(run: Path, name: str) -> None:
    from tests.mutants.segments import SegmentFile

    path = run / "rank-00000" / "records-00000.bin"
    file = SegmentFile.read(path)
    file.put_text(next(number for number, text in file.texts().items() if text == "kineto-0.json.gz"), name.encode())
    file.write(path)
    found = [one.message for one in ddptrace.analyze(run).findings if one.code == "window-unreadable"]
    assert len(found) == 1 and "is no name of a file in rank-00000" in found[0]


@pytest.mark.timeout(60)
def test_a_link_to_a_folder_around_the_traces_is_not_followed(run: Path) -> None:
    traces = run.parent / "traces"
    traces.mkdir()
    shutil.copy(run / "rank-00000" / "kineto-0.json.gz", traces / "rank-0.json.gz")
    (traces / "root").symlink_to("/")
    (traces / "around").symlink_to("..")
    (traces / "beside").symlink_to("../run/rank-00001")
    found = find_traces([traces])
    assert [file.paths[0].name for file in found.files] == ["rank-0.json.gz", "kineto-0.json.gz"]


# Recording -----------------------------------------------------------------------------------------------------------


def train() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["rank-00000", "attempt-1", "analysis", "manifest.json.PID.new"])
def test_a_recording_that_overwrites_removes_links_and_follows_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("precious\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    is_folder = not name.startswith("manifest")
    link = tmp_path / "run" / name.replace("PID", str(os.getpid()))
    link.symlink_to(tmp_path / "home" / ("" if is_folder else ".bashrc"))
    os.utime(tmp_path / "home", (1, 1))  # nobody is writing there
    with ddptrace.trace(tmp_path / "run", overwrite=True):
        train()
    assert home(tmp_path / "run") == {".bashrc": "precious\n"}
    assert not link.is_symlink()
    assert len(ddptrace.analyze(tmp_path / "run").steps) == 3


def made_by(write: Callable[[Path], object], path: Path) -> str:
    """What lies where a link led, once `path`, which was that link, was written."""
    precious = path.parent / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    write(path)
    return precious.read_text()


def test_what_is_written_whole_replaces_a_link(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        with whole_file(path) as file:
            file.write(b"new")

    assert made_by(write, tmp_path / "report.html") == "precious"
    assert (tmp_path / "report.html").read_bytes() == b"new"
    assert made_by(lambda path: write_json(path, {}), tmp_path / "meta.json") == "precious"


def test_the_log_of_a_companion_is_not_written_through_a_link_nor_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / LOG).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        os.open(tmp_path / LOG, APPENDING, 0o666)
    (tmp_path / LOG).unlink()
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(OSError, match="No such device"):
        os.open(tmp_path / LOG, APPENDING, 0o666)
