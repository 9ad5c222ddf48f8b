"""`ddptrace figures`: the report's pictures as files, drawn by a real Chromium."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ddptrace
from ddptrace import figures
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError
from tests import small_disk
from tests.conftest import Record, need
from tests.launch import environment
from tests.unit.test_render_report import EVIL, evil_result

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"timeline", "buckets", "steps", "ranks", "phases", "matches", "path", "bandwidth"}
"""Of a short run."""


@pytest.fixture(scope="module")
def run(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("figures") / "run", "ddp.py", "--profile")


@pytest.fixture(autouse=True)
def drawing(chromium: str) -> None:
    need(find_spec("kaleido"), "kaleido (pip install kaleido)")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ddptrace", "figures", *map(str, arguments)]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def test_every_figure_of_a_run_is_written_beside_it(run: Path) -> None:
    done = command(run)
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert {file.parent for file in files} == {run / "analysis" / "figures"}
    steps, _ = measured_steps(ddptrace.analyze(run).steps)
    of_ranks = len({row.rank for row in steps}) == 2  # on a busy machine, ddptrace may hold up all steps of a rank
    assert {file.stem for file in files} >= DRAWN | ({"buckets_by_rank"} if of_ranks else set())
    texts = ["".join(one.itertext()) for one in ElementTree.parse(files[0]).iter(f"{SVG}text")]
    assert any(text.startswith("A typical step") for text in texts)
    assert {"communication, hidden", "rank 1 phases"} <= set(texts)


def test_a_png_is_twice_as_fine_as_it_is_wide(tmp_path: Path) -> None:
    (path,) = figures.write_images({"steps": figures.steps(evil_result())}, tmp_path / "new", "png")
    head = path.read_bytes()[:24]
    assert (path.name, head[:4], struct.unpack(">I", head[16:20])) == ("steps.png", b"\x89PNG", (2000,))


def test_a_name_from_a_run_is_read_in_a_picture_and_obeyed_nowhere(tmp_path: Path) -> None:
    evil = evil_result()
    linked = Table(CollectiveRow, [replace(row, op=EVIL[2]) for row in evil.collectives])
    found = figures.bandwidth(replace(evil, collectives=linked)), figures.timeline(evil)
    paths = figures.write_images(dict(zip(("bandwidth", "timeline"), found, strict=True)), tmp_path)
    elements = [element for path in paths for element in ElementTree.parse(path).iter()]
    assert any(EVIL[2] in "".join(element.itertext()) for element in elements if element.tag == f"{SVG}text")
    assert not {element.tag for element in elements} & {f"{SVG}{tag}" for tag in ("script", "a", "foreignObject")}
    assert not any(name.startswith("on") for element in elements for name in element.attrib)


@pytest.mark.parametrize(
    ("browser", "told"),
    [("/nowhere/chromium", "none was found: install one"), ("/bin/false", "the browser could not draw")],
)
def test_a_browser_that_is_not_there_or_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: str, told: str
) -> None:
    monkeypatch.setenv("BROWSER_PATH", browser)
    monkeypatch.setattr("ddptrace.figures.images.START_S", 20)  # kaleido may not hear that a browser has ended
    with pytest.raises(DdptraceError, match=told):
        figures.write_images({"steps": figures.steps(evil_result())}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_browser_that_never_answers_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, pid = tmp_path / "chromium", tmp_path / "pid"
    silent.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec cat <&3 >/dev/null\n")
    silent.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(silent))
    monkeypatch.setattr("ddptrace.figures.images.START_S", 10)
    monkeypatch.setattr("ddptrace.figures.images.EACH_S", 0)
    with pytest.raises(DdptraceError, match="could not draw the figures: it has not answered in 10 s"):
        figures.write_images({"steps": figures.steps(evil_result())}, tmp_path / "figures")
    assert list((tmp_path / "figures").iterdir()) == []
    until = time.monotonic() + 20
    while Path("/proc", pid.read_text().strip()).exists():  # it hears, as Chromium does, that nobody asks any more
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_full_disk_is_told_and_leaves_the_picture_that_was_there(run: Path, tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path, size_mb=1) as disk:
        (disk / "steps.svg").write_text("from before")
        small_disk.fill(disk)
        done = command(run, "-o", disk)
        assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")
        assert {path.name for path in disk.iterdir()} == {"steps.svg", "filler"}
        assert (disk / "steps.svg").read_text() == "from before"


def test_a_run_with_nothing_to_draw_is_told(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    done = command(tmp_path)
    assert done.returncode == 1
    assert "holds nothing to draw" in done.stderr
