"""Starts real training processes for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "programs"


def torchrun(program: str | Path, *args: object, ranks: int = 2, timeout_s: float = 120) -> str:
    """Run a program on `ranks` local processes; its output. Fails the test where it fails."""
    done = subprocess.run(command(program, *args, ranks=ranks), env=environment(), capture_output=True, text=True,
                          timeout=timeout_s, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(program: str | Path, *args: object, ranks: int = 2) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, str(PROGRAMS / program), *map(str, args)]


def environment() -> dict[str, str]:
    """The tests' own, with one thread a rank: more would only fight over the cores."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
