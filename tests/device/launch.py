"""Starts the programs of these tests, each as ranks that know the device. The process of the tests never does: torch
would take the test device for the machine's accelerator, and a process that has used CUDA cannot fork ranks."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.device.device import HERE
from tests.launch import ROOT, command, environment
from tests.ranks import Ranks

PROGRAMS = Path(__file__).resolve().parent / "programs"
CANNOT_FORK = "forked subprocess"  # what torch says where the process that forks had used CUDA
WITHOUT_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""`torch.cuda.is_available()`, which some module may call on its import, then does not use CUDA."""


def run_on_device(program: str, *arguments: object, ranks: int, timeout_s: float = 120) -> None:
    """Run a program on `ranks` processes. Fails the test where it fails."""
    environ = environment() | WITHOUT_CUDA
    well, said = forks().run([str(PROGRAMS / program), *map(str, arguments)], ranks, environ, timeout_s)
    if not well and CANNOT_FORK in said:
        well, said = _anew(command(PROGRAMS / program, *arguments, ranks=ranks), environ, timeout_s)
    assert well, said


@functools.cache
def forks() -> Ranks:
    return Ranks(environment() | WITHOUT_CUDA, ROOT, [] if HERE.is_gpu else ["tests.device.testdev"])


def _anew(argv: list[str], environ: dict[str, str], timeout_s: float) -> tuple[bool, str]:
    """Start each rank with torchrun: whether they ended well, and what they said."""
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    except subprocess.TimeoutExpired as late:
        return False, f"The ranks are not done after {timeout_s} s.\n{late.stdout}{late.stderr}"
    return not done.returncode, done.stdout + done.stderr
