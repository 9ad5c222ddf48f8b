"""Runs programs that start their ranks by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.launch import PROGRAMS, environment


def self_launched(program: str, folder: Path) -> None:
    """Run the program on a folder. Fails the test where it fails."""
    command = [sys.executable, str(PROGRAMS / program), str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
