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
MUTANTS = 20  # of each seed; `python -m tests.scanner_mutants` reads thousands
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


IN_EVENTS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
IN_ARGS = ("Collective name", "correlation", "bytes", "Seq")
VALUES = (
    *rb"""0 -0 00 01 -1 - 1. .5 1.5 12.345 12.3456 1e3 1E-4 1e999 +1 0x1 1_0 7.0 18446744073709551616 null nul true
    false 9223372036854775807 4611686018427387903 4611686018427387.903 4611686018427387.904 nan NaN Infinity [] [1,] [,]
    [} {} {"a":1,} {"a":} {1:2} {"a":[{"b":[null,true]}]} "" "X" "M" "kernel" "KERNEL" "gpu_memcpy" "c10d::x" "aten::mm"
    "7" "5" "x 'x' "\u0041" "\u00e9" "\ud800" "\ud83d\ude00" "\u12" "\u12g4" "\u212aernel" "\q" "\/" "\" "a\"b" "\\"
    """.split(),
    *(b'"%b"' % text.encode() for text in ("\u212aernel", "\u00e9\u4e2d\U0001f600", "\t", "\x7f", "\x00")),
    *(
        b'"%b"' % text
        for text in (b"\xe9", b"\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80")
    ),
    *(b'"%b"' % text for text in (b"\xf0\x9f\x98", b"\xf5\x80\x80\x80", b"\xf0\x80\x80\x80", b"a" * 100)),
    *(b"[" * depth + b"]" * depth for depth in (90, 99, 100, 101, 200, 3000)),
    *(b"9" * 30, b"1" * 400, b"0." + b"1" * 30, b"", b"\xa01", b"\x0b1", b"[1 2]", b'{"a" 1}', b"1 /**/"),
)
KEYS = (*rb'"ts" "t\u0073" "" ts "TS" "args" "correlation"'.split(), b'"ts" "x"', b'"\xe9"', b'"\xc3\xa9"', b'"a\nb"')


def with_value(place: str, value: bytes) -> bytes:
    """An event in which this stands at one place; the other places hold what real files have there."""
    args = {"correlation": b"5", "bytes": b"64", "Seq": b"1"}
    fields = {
        "ph": b'"X"',
        "cat": b'"gpu_memcpy"',
        "name": b'"copy"',
        "pid": b"0",
        "tid": b"7",
        "ts": b"10",
        "dur": b"2",
    }
    (args if place in IN_ARGS else fields)[place] = value
    inner = b",".join(b'"%b": %b' % (key.encode(), text) for key, text in args.items())
    outer = {"args": b"{%b}" % inner} | fields
    return b"{%b}" % b",".join(b'"%b": %b' % (key.encode(), text) for key, text in outer.items())


def with_key(key: bytes) -> bytes:
    return with_value("id", b"1, %b: 3" % key)


def with_inner_key(key: bytes) -> bytes:
    return with_value("Seq", b"1, %b: 3" % key)


REGULAR = with_value("id", b"1")


@pytest.mark.parametrize("place", [*IN_EVENTS, *IN_ARGS])
def test_each_value_at_each_place_is_read_alike(place: str, tmp_path: Path) -> None:
    for value in VALUES:
        assert_alike(tmp_path, with_value(place, value))


def test_each_key_is_read_alike(tmp_path: Path) -> None:
    for key in KEYS:
        assert_alike(tmp_path, with_key(key))
        assert_alike(tmp_path, with_inner_key(key))


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b",,",
        b", ,",
        b",\n\t\r ",
        b",\x0b",
        b"\xc2\xa0,",
        b",1,",
        b',"x",',
        b",null,",
        b",{},",
        b",[],",
        b"]",
        b"}",
    ],
)
def test_what_stands_between_events_is_read_alike(between: bytes, tmp_path: Path) -> None:
    assert_alike(tmp_path, REGULAR, between)


def assert_alike(folder: Path, event: bytes, between: bytes = b",") -> None:
    path = folder / "trace.json"
    path.write_bytes(b'{"traceEvents": [%b]}' % b",".join([REGULAR, event + between + REGULAR, REGULAR]))
    try:
        assert_same(path)
    except BaseException:
        print(path.read_bytes()[:2000])
        raise


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
