"""Makes the runs of two sides in turns, so that what changes on the machine meanwhile changes for both."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError

PLACE: Final = "{run}"
OUT: Final = "DDPTRACE_OUT"
"""What `python -m ddptrace.run` takes as its run directory where no flag says another."""

PATIENCE_S: Final = 35
"""For what is asked to end: torchrun, which alone knows its workers, gives them 30 s."""

LOOK_S: Final = 0.05
"""Seconds between two looks."""


def make_runs(repeat: int, commands: Mapping[Path, str], tell: Callable[[str], None]) -> None:
    """`commands`: for a shell, by the folder of their runs, which become FOLDER/01, FOLDER/02 and so on, with what the
    command said in FOLDER/01.log. The side that is first changes from turn to turn.

    Raises DdptraceError where a folder already holds something or is in the other, and where a command fails or leaves
    no run.
    """
    _refuse_one_place([Path(os.path.realpath(folder)) for folder in commands])
    for folder in commands:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise DdptraceError(
                f"{folder} is not empty: runs that are made now would mix with what is there; give a new folder"
            )
    for turn in range(repeat):
        order = list(commands.items())
        for folder, command in order if turn % 2 == 0 else order[::-1]:
            run = folder / f"{turn + 1:02d}"
            tell(f"turn {turn + 1} of {repeat}: {run}")
            make_run(run, command)


def _refuse_one_place(folders: Sequence[Path]) -> None:
    """However they are spelled: each run of one side would count as one of the other too."""
    if len(folders) < 2 or any(one.is_relative_to(other) for one, other in permutations(folders, 2)):
        raise DdptraceError("both sides would be made in the same folder: give two, neither within the other")


def make_run(run: Path, command: str) -> None:
    """By a command for a shell. Raises DdptraceError where it fails or leaves no run."""
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
    """Its exit status. All that it started ends with it, or with this process: it would take time from the next run."""
    with subprocess.Popen(
        command, shell=True, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
    ) as process:
        try:
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """What is left of its group; what does not end when asked, or while the user will not wait, is killed."""
    try:
        until = time.monotonic() + PATIENCE_S
        asked = _hears(process, signal.SIGTERM)
        while asked and _hears(process, 0) and time.monotonic() < until:
            time.sleep(LOOK_S)
    finally:
        _hears(process, signal.SIGKILL)
        process.wait()


def _hears(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether anyone of its group is there to be told."""
    process.poll()
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # none; or only such as became another user
        return False
    return True
