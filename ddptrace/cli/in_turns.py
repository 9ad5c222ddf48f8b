"""Makes the runs of two sides in alternation, so that a change on the machine affects both."""

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

from ddptrace.cli.endings import signals_held
from ddptrace.errors import DdptraceError
from ddptrace.units import left_words

PLACE: Final = "{run}"
OUT: Final = "DDPTRACE_OUT"
"""The run directory of `python -m ddptrace.run` without `--out`."""

PATIENCE_S: Final = 35
"""How long to wait for a command after SIGTERM: torchrun, which alone knows its workers, gives them 30 s."""

LOOK_S: Final = 0.05
"""Seconds between two checks."""


def make_runs(repeat: int, commands: Mapping[Path, str], tell: Callable[[str], None]) -> None:
    """Make `repeat` runs with each command, alternating between them; the first side changes from turn to turn.

    `commands`: shell commands, by the folder of their runs. These are FOLDER/01, FOLDER/02 and so on; the output of the
    command is in FOLDER/01.log and so on.

    Raises DdptraceError if a folder is not empty or lies in the other, and if a command fails or writes no run.
    """
    _refuse_one_place([Path(os.path.realpath(folder)) for folder in commands])
    for folder in commands:
        folder.mkdir(parents=True, exist_ok=True)
        if next(folder.iterdir(), None) is not None:
            raise DdptraceError(f"{folder} is not empty, and new runs would mix with its files; give a new folder")
    began_ns, done = time.monotonic_ns(), 0
    for turn in range(repeat):
        order = list(commands.items())
        for folder, command in order if turn % 2 == 0 else order[::-1]:
            run = folder / f"{turn + 1:02d}"
            left = left_words(time.monotonic_ns() - began_ns, done, repeat * len(commands))
            tell(f"turn {turn + 1} of {repeat}: {run}{left}")
            make_run(run, command)
            done += 1


def _refuse_one_place(folders: Sequence[Path]) -> None:
    """Each run of one side would count for the other side, too."""
    if len(folders) < 2 or any(one.is_relative_to(other) for one, other in permutations(folders, 2)):
        raise DdptraceError("both sides would be made in the same folder; give two folders, neither inside the other")


def make_run(run: Path, command: str) -> None:
    """Make a run with a shell command. Raises DdptraceError if it fails or writes no run."""
    from ddptrace.load.run_folder import is_run

    log, place = run.with_suffix(".log"), run.absolute()
    with log.open("wb") as said:
        status = _done(command.replace(PLACE, shlex.quote(str(place))), os.environ | {OUT: str(place)}, said.fileno())
    if status:
        raise DdptraceError(f"`{command}` ended with exit code {status}; its output is in {log}")
    if not is_run(run):
        raise DdptraceError(
            f"`{command}` wrote no run to {run}; have it trace into {PLACE}, which stands for that path, or into ${OUT}"
        )


def _done(command: str, environ: Mapping[str, str], said: int) -> int:
    """Return its exit status. Every process that it started ends with it, so that none slows the next run."""
    with signals_held() as release:
        process = subprocess.Popen(
            command, shell=True, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            release()
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of its process group: by SIGTERM, and after `PATIENCE_S` or Ctrl-C by SIGKILL."""
    try:
        until = time.monotonic() + PATIENCE_S
        asked = _hears(process, signal.SIGTERM)
        while asked and _hears(process, 0) and time.monotonic() < until:
            time.sleep(LOOK_S)
    finally:
        _hears(process, signal.SIGKILL)
        process.wait()


def _hears(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to its process group. Returns whether a process was there."""
    process.poll()
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # none left, or only processes of another user
        return False
    return True
