"""Runs a hostile program in one mode, and tells how two runs of it differ."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ddptrace.load.run import read_run
from tests.hostile.registry import Program
from tests.launch import ROOT, environment
from tests.ranks import Ranks, torchruns_environ

RANK = ROOT / "tests" / "hostile" / "rank.py"
TIMEOUT_S: Final = 60.0
MOST_LINES, MOST_SHOWN = 30, 2000
"""Of a difference, and characters of each."""

OUR_FRAME = re.compile(
    rf'^ *(?:\| *)?File "{re.escape(str(ROOT))}/(?:ddptrace|tests/ranks\.py|tests/hostile/rank\.py)[^\n]*\n'
    r"(?:(?: *\| *| {4,})(?!File )[^\n]*\n)*",
    re.MULTILINE,
)
"""In a traceback, with the lines of source that belong to it."""

LIBKINETO = re.compile(r"USDT:[^\n]*\n?|^(?:Failed to read process name|ERROR: External init)[^\n]*\n", re.MULTILINE)
"""What libkineto says at each window of a profiler."""

TENSORPIPE = re.compile(r"^\[W[^\n]* tensorpipe_agent.cpp:\d+\][^\n]*\n", re.MULTILINE)
"""What an RPC agent says where the other one hangs up first."""

WARNING = re.compile(r"^[^\n]*:\d+: (\w*Warning: [^\n]*)\n(?: {2}[^\n]*\n)?", re.MULTILINE)
"""With its place, which torch finds by counting frames: a wrapper of ours is one more."""

VARYING: Final = (
    (LIBKINETO, ""),
    (TENSORPIPE, ""),
    (WARNING, r"\1\n"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"\[([WEI])\d{4} [\d:.]+ ([^:\]]+):\d+\]"), r"[\1 \2]"),  # torch's log lines
    (re.compile(r"([WEI])\d{4} [\d:.]+ \d+ (\S+\.py:\d+\])"), r"\1 \2"),  # and those of its Python
    (re.compile(r"(127\.0\.0\.1|localhost)\]?:\d+"), r"\1:port"),
    (re.compile(r"\bpid[ =]\d+|process \d+|Process-\d+|/tmp/tmp\w+"), "number"),
)


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank did. `code`: its exit code, negative where a signal ended it; None where it did not end in time."""

    code: int | None
    stdout: str
    stderr: str
    kept: str
    left: dict[str, Any]


def run(program: Program, mode: str, folder: Path) -> list[Rank]:
    """Run every rank of a program, in a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    argv = [str(RANK), program.name, mode, str(folder)]
    environ = environment() | dict(program.environ)
    if program.flags is None:
        codes = _attempts(program, argv, environ)
    else:
        codes = _fresh(program.flags, argv, program.ranks, environ)
    return [_rank(folder, number, code) for number, code in enumerate(codes)]


def _attempts(program: Program, argv: list[str], environ: dict[str, str]) -> list[int | None]:
    """Exit codes of the last one."""
    found: list[int | None] | None = None
    for attempt in range(program.attempts):
        job = {"TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_RUN_ID": f"{program.name} {argv[-1]}"}
        found, _ = server(program.imports).statuses(
            argv, program.ranks, environ, TIMEOUT_S, to_the_end=True, torchrun=job
        )
    return [None if one is None else os.waitstatus_to_exitcode(one) for one in found or [None] * program.ranks]


@functools.cache
def server(imports: tuple[str, ...]) -> Ranks:
    return Ranks(environment(), ROOT, [*imports, "torch._dynamo", "tests.hostile.warm"])


def _fresh(flags: tuple[str, ...], argv: list[str], ranks: int, environ: dict[str, str]) -> list[int | None]:
    """In interpreters of their own, started with `flags`."""
    started = [
        subprocess.Popen([sys.executable, *flags, *argv], env=environ | torchruns_environ(rank, ranks, 0))
        for rank in range(ranks)
    ]
    try:
        return [_waited(one) for one in started]
    finally:
        for one in started:
            one.kill()


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None


def _rank(folder: Path, number: int, code: int | None) -> Rank:
    said = {name: _read(folder, f"{name}-{number}") for name in ("stdout", "stderr", "kept", "left")}
    said["stderr"] = _without_what_varies(said["stderr"])
    return Rank(code, said["stdout"], said["stderr"], said["kept"], json.loads(said["left"] or "{}"))


def _read(folder: Path, name: str) -> str:
    """Without the folder's own name, which is another in every run."""
    path = folder / name
    content = path.read_text(errors="backslashreplace") if path.exists() else ""
    return content.replace(str(folder), "<folder>")


def _without_what_varies(said: str) -> str:
    said = OUR_FRAME.sub("", re.sub(r"^\[rank\d+\]: ", "", said, flags=re.MULTILINE))
    for pattern, instead in VARYING:
        said = pattern.sub(instead, said)
    return said


def differences(plain: list[Rank], traced: list[Rank]) -> Iterator[str]:
    """A sentence for each thing in which a traced run is not the plain one."""
    for number, (off, on) in enumerate(zip(plain, traced, strict=True)):
        if off.code != on.code:
            yield f"rank {number} ended with {_ending(on.code)} instead of {_ending(off.code)}"
        for name in ("stdout", "stderr", "kept"):
            if getattr(off, name) != getattr(on, name):
                yield f"rank {number}, {name}:\n{_diff(getattr(off, name), getattr(on, name))}"
        if bool(off.left) != bool(on.left):
            yield f"rank {number} {'does not tell' if off.left else 'tells'} what it leaves"
        for name in sorted(off.left.keys() & on.left.keys()):
            if off.left[name] != on.left[name]:
                yield f"rank {number} leaves other {name}: {_left(off.left[name], on.left[name])}"


def _ending(code: int | None) -> str:
    if code is None:
        return f"nothing: it did not end within {TIMEOUT_S:g} s"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "plain", "traced", lineterm="", n=2)
    return "\n".join(line[:MOST_SHOWN] for line in itertools.islice(lines, MOST_LINES))


def _left(before: Any, after: Any) -> str:
    if isinstance(before, list) and isinstance(after, list):
        return f"not changed any more {sorted({*before} - {*after})}, changed as well {sorted({*after} - {*before})}"
    return f"{after} instead of {before}"


OWN_FAILURES: Final = frozenset(
    {
        "surface-failed",
        "keeper-failed",
        "tap-failed",
        "compiled-failed",
        "patch-kept",
        "not-settled",
        "no-meta",
    }
)
"""Findings that tell of a failure of ddptrace, not of the program."""


def failures(program: Program, folder: Path) -> Iterator[str]:
    """A sentence for each failure of ddptrace itself that a traced run tells of, and where it has recorded nothing."""
    runs = sorted(path.parent for path in folder.glob("*/manifest.json"))
    if program.records and not runs:
        yield "nothing was recorded"
    for path in runs:
        run = read_run(path)
        for finding in run.findings:
            if finding.code in OWN_FAILURES - program.notes:
                yield f"{path.name}: {finding.code}: {finding.message}"
        if program.records and not any(rank.calls or rank.steps or rank.phases for rank in run.ranks):
            yield f"{path.name} holds no record"
