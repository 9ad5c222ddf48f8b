"""The compiled scanner against the reader in Python, its reference: the same columns, or the same refusal."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto import columns, stream
from ddptrace.load.kineto import scan_library as scan_library_module
from ddptrace.load.kineto import source as kineto_source
from ddptrace.load.kineto.events import KinetoEvents
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.kineto.scan_library import compile_scanner, load_library, scan_library
from tests.command_line import ddptrace_says
from tests.unit.kineto_mutants import all_seeds, mutated
from tests.unit.test_load_kineto import NEEDS_TRACES, TRACES

LARGEST = 4e6  # of packed bytes
MUTANTS = 60  # of each seed; `python -m tests.scanner_mutants` reads thousands
pytestmark = pytest.mark.skipif(
    scan_library() is None, reason="needs the compiled scanner: a C compiler at installation"
)


def read(path: Path) -> KinetoEvents | str:
    try:
        return read_kineto(path)
    except RunDirectoryError as error:
        return str(error)


def read_by_both(path: Path) -> tuple[KinetoEvents | str, KinetoEvents | str]:
    """The compiled scanner first."""
    compiled = read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "scan_library", lambda: None)
        return compiled, read(path)


def assert_same(path: Path) -> KinetoEvents | str:
    one, other = read_by_both(path)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return one
    for field in dataclasses.fields(KinetoEvents):
        ours, reference = getattr(one, field.name), getattr(other, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == reference.dtype and ours.tolist() == reference.tolist(), field.name
        else:
            assert ours == reference, field.name
    return one


@pytest.fixture
def taken_in(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the scanner took in each part of the files that it was asked for."""
    answers: list[bool] = []
    scan = columns.Columns.scan

    def watched(self: columns.Columns, *part: Any) -> int | None:
        found = scan(self, *part)
        if self.is_compiled:
            answers.append(found is not None)
        return found

    monkeypatch.setattr(columns.Columns, "scan", watched)
    return answers


@NEEDS_TRACES
@pytest.mark.parametrize("folder", ["dlrm-8ranks", "ddp-a100", "old-format", "sampled-2of128", "odd", "judged"])
def test_real_files_give_the_same_columns(folder: str, taken_in: list[bool]) -> None:
    found = sorted(path for path in (TRACES / folder).rglob("*.json*") if "analysis" not in path.parts)
    read_files = [assert_same(path) for path in found if path.stat().st_size < LARGEST]
    assert read_files
    assert sum(taken_in) > 0.8 * len(taken_in), "the scanner refuses what real files hold"


def test_the_version_says_which_reader_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ddptrace_says("--version").stdout.endswith("Profiler files are read by a compiled scanner.\n")
    monkeypatch.setattr(scan_library_module, "scan_library", lambda: None)
    assert ddptrace_says("--version").stdout.endswith("Profiler files are read by Python alone.\n")


@pytest.mark.parametrize(
    ("compiler", "why"), [("false", "false failed: "), ("/no/such/cc", "/no/such/cc cannot be run (")]
)
def test_without_a_compiler_no_library_is_left(
    compiler: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scan.so"
    path.write_bytes(b"of another source")
    monkeypatch.setenv("CC", compiler)
    failure = compile_scanner(path)
    assert failure is not None and failure.startswith(why)
    assert not path.exists()


def test_a_library_of_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scan.so"
    assert compile_scanner(path) is None
    assert load_library(path) is not None
    changed = tmp_path / "scan.c"
    changed.write_bytes(scan_library_module.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(scan_library_module, "SOURCE", changed)
    assert load_library(path) is None


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_what_is_no_library_is_not_used(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scan.so"
    path.write_bytes(content)
    assert load_library(path) is None
    assert load_library(tmp_path / "absent.so") is None


def test_damaged_files_give_the_same_columns_or_the_same_refusal(
    shared_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_source, "PIECE_NBYTES", 1301)
    monkeypatch.setattr(stream, "BATCH_NBYTES", 1700)
    path = tmp_path / "trace.json"
    for seed in all_seeds(shared_traces):
        chance = random.Random(seed.name)
        for number in range(MUTANTS):
            path.write_bytes(mutated(seed.text, chance))
            try:
                assert_same(path)
            except BaseException:
                print(f"mutant {number} of {seed.name}: {path.read_bytes()[:3000]!r}")
                raise
