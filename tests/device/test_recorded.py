"""The checks of a GPU hold for what programs left on one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.device import CHOSEN
from tests.launch import ROOT, environment

FOLDER = Path(__file__).resolve().parent
CHECKS = ("test_programs.py", "test_planted.py", "test_any_device.py")
LEAST = 110


@pytest.mark.skipif(CHOSEN != "test", reason="its checks run here themselves")
def test_what_programs_left_on_a_gpu_passes_the_checks_of_one() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(FOLDER / one) for one in CHECKS)]
    environ = environment() | {"DEVICE": "recorded", "PYTEST_ADDOPTS": "", "DDPTRACE_REQUIRE_ALL": ""}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert not done.returncode and passed is not None, done.stdout[-5000:]
    assert int(passed[1]) >= LEAST
