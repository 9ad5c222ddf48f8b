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


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    environment = os.environ | {FOLDER_VARIABLE: str(folder), "DDPTRACE_ACCEPTANCE": "1"}  # nothing runs beside them
    warnings = ["-W", "default"] if HERE.is_gpu else []  # what another torch warns of is no failure there
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-p", "no:cacheprovider", *warnings, *sys.argv[2:]]
    status = subprocess.run(command, env=environment, cwd=FOLDER.parents[1]).returncode
    print(f"See {folder / 'summary.txt'}.")
    return status


sys.exit(main())
