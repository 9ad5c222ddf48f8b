"""Runs all tests of the device, and leaves a summary: `python -m tests.device FOLDER [PYTEST'S OPTIONS]`.

The environment's DEVICE chooses the device, as in `tests/device/device.py`. FOLDER gets `summary.json`, `summary.txt`
and `recorded/`, a small recorded run, even where checks fail.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.device.conftest import FOLDER_VARIABLE
from tests.device.device import HERE

FOLDER = Path(__file__).resolve().parent


PROGRAMS = str(FOLDER / "test_programs.py")
SIDE_BY_SIDE = ["--numprocesses", str(min(8, os.cpu_count() or 1)), "--dist", "loadgroup"]


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    (folder / "summary.json").unlink(missing_ok=True)
    environment = os.environ | {FOLDER_VARIABLE: str(folder), "DDPTRACE_ACCEPTANCE": "1"}  # nothing runs beside them
    warnings = ["-W", "default"] if HERE.is_gpu else []  # what another torch warns of is no failure there
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *warnings, *sys.argv[2:]]
    passes = ([*SIDE_BY_SIDE, PROGRAMS], ["--ignore", PROGRAMS, str(FOLDER)])  # the others compare times
    statuses = [
        subprocess.run([*command, *arguments], env=environment, cwd=FOLDER.parents[1]).returncode
        for arguments in passes
    ]
    print(f"See {folder / 'summary.txt'}.")
    return max(statuses)


sys.exit(main())
