"""Makes the runs of two sides in turns, so that what changes on the machine meanwhile changes for both."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError

PLACE: Final = "{run}"
OUT: Final = "DDPTRACE_OUT"
"""What `python -m ddptrace.run` takes as its run directory where no flag says another."""

PATIENCE_S: Final = 10


def make_runs(repeat: int, commands: Mapping[Path, str], tell: Callable[[str], None]) -> None:
    """`commands`: for a shell, by the folder of their runs, which become FOLDER/01, FOLDER/02 and so on, with what the
    command said in FOLDER/01.log. The side that is first changes from turn to turn.

    Raises DdptraceError where a folder already holds something, and where a command fails or leaves no run.
    """
    if len(commands) < 2:
        raise DdptraceError("both sides would be made in the same folder: give two")
    for folder in commands:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise DdptraceError(f"{folder} is not empty: runs that are made now would mix with what is there")
    for turn in range(repeat):
        order = list(commands.items())
        for folder, command in order if turn % 2 == 0 else order[::-1]:
            run = folder / f"{turn + 1:02d}"
            tell(f"turn {turn + 1} of {repeat}: {run}")
            _make(run, command)


def _make(run: Path, command: str) -> None:
    from ddptrace.load.run_folder import is_run

    log, place = run.with_suffix(".log"), run.absolute()
    with log.open("wb") as said:
        status = _done(command.replace(PLACE, shlex.quote(str(place))), os.environ | {OUT: str(place)}, said.fileno())
    if status:
        raise DdptraceError(f"`{command}` ended with {status}; what it said is in {log}")
    if not is_run(run):
        raise DdptraceError(
            f"`{command}` left no run in {run}: trace into {PLACE}, which stands for it in the command, or into ${OUT}"
        )


def _done(command: str, environ: Mapping[str, str], said: int) -> int:
    """Its exit status. It ends with this process, and all that it started."""
    with subprocess.Popen(
        command, shell=True, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
    ) as process:
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue
        return
