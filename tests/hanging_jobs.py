"""Jobs of `programs/hanging.py`, looked at while they hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptrace.analysis.diagnosis.diagnose import diagnose as diagnosis_of
from ddptrace.errors import DdptraceError
from ddptrace.load.diagnosis.job import read_job
from tests.command_line import ddptrace_says
from tests.launch import PROGRAMS, environment

MOST_S = 180.0  # a machine that does much else starts a job slowly; what hangs is told of after 5 s


@dataclass(frozen=True)
class Jobs:
    """All of them at once, since what hangs takes no processor."""

    folder: Path
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """What somebody does who has waited long enough. All ranks are gone then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, 0)
                time.sleep(0.02)


@contextmanager
def started(folder: Path, *jobs: str) -> Iterator[Jobs]:
    command = [sys.executable, str(PROGRAMS / "hanging.py"), str(folder), *jobs]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said, start_new_session=True)
    running = Jobs(folder, process)
    try:
        yield running
    finally:
        running.end()


def diagnose(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return ddptrace_says("diagnose", run, *options)


def verdict_of(run: Path, code: int, kind: str, *, where: str = "") -> dict[str, Any]:
    """The first verdict that the command prints, once its exit code is this one, and the verdict of this kind and tells
    `where` of each rank: somebody has to have looked."""
    until, said = time.monotonic() + MOST_S, ""
    while time.monotonic() < until:
        if _first_kind(run) == (code, kind):
            done = diagnose(run, "--json")
            said = done.stdout + done.stderr
            first: dict[str, Any] = json.loads(done.stdout)["verdicts"][0]
            if (done.returncode, first["kind"]) == (code, kind) and all(where in one for one in first["where"]):
                return first
        time.sleep(0.25)
    raise AssertionError(f"no {kind}, exit code {code} within {MOST_S} s: {said or _first_kind(run)}")


def _first_kind(run: Path) -> tuple[int, str]:
    """Within this process, which is quicker."""
    try:
        found = diagnosis_of(read_job(run))
    except DdptraceError:  # it has not begun
        return 1, ""
    return found.exit_code, found.verdicts[0].kind


def shown(verdict: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(one) if isinstance(one := verdict[name], list) else one for name in ("op", "nbytes", "waiting", "absent")
    )
