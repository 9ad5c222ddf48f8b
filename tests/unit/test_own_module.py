"""A module of ours in a process of its own finds what its parent finds, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddptrace.own_module import own_module
from tests.launch import ROOT
from tests.planted_modules import plant

TELLS = "import sys; print(__name__, sys.path, sys.argv[1:])"


def said(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def test_it_is_run_as_main_with_its_arguments_and_the_path_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = f"__main__ {sys.path} ['-m', 'two words', '']"
    assert said(*own_module("tells"), "-m", "two words", "", cwd=Path("/")) == expected


def test_a_package_runs_its_main(tmp_path: Path) -> None:
    assert said(*own_module("ddptrace"), "--version", cwd=tmp_path).startswith("ddptrace, version")


def test_nothing_in_the_current_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = plant(tmp_path / "planted")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(Path.cwd()))] + [str(ROOT)])
    said(*own_module("ddptrace"), "--help", cwd=mark.parent)
    assert not mark.exists()
    # WHEN as python -m does
    subprocess.run([sys.executable, "-m", "ddptrace"], cwd=mark.parent, capture_output=True, check=False)
    assert mark.exists()


def test_where_the_parent_looks_in_the_current_directory_so_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text("print('found')")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert said(*own_module("here"), cwd=tmp_path) == "found"


def test_no_module_of_ours_is_started_in_another_way() -> None:
    rooms = ROOT / "ddptrace", ROOT / "benchmarks"
    texts = {path: path.read_text() for room in rooms for path in room.rglob("*.py")}
    assert not [path for path, text in texts.items() if re.search(r'sys\.executable,\s*"-m"', text)]
    assert sum("own_module(" in text for text in texts.values()) > 4
