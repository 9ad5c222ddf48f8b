"""`accelerate launch -m ddptrace.run`: an Accelerate program recorded without a word of ddptrace in it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from ddptrace.load.run import read_run
from tests.conftest import need
from tests.launch import PROGRAMS, environment

RANKS, UPDATES = 2, 8
ON_SEVERAL = ("--multi_gpu", "--num_processes", str(RANKS), "--num_machines", "1")  # with --cpu it starts but one
PLAINLY = ("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no")


def test_accelerate_starts_the_ranks_under_our_launcher(tmp_path: Path) -> None:
    need(importlib.util.find_spec("accelerate"), "accelerate (pip install -c constraints-frameworks.txt accelerate)")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *ON_SEVERAL, *PLAINLY]
    program = [str(PROGRAMS / "frameworks_accelerate.py"), str(tmp_path)]
    line = [*launcher, "-m", "ddptrace.run", "--out", str(tmp_path / "run"), *program]
    env = environment() | {"ACCELERATE_USE_CPU": "true", "HF_HOME": str(tmp_path)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(tmp_path / "run")
    assert [len(rank.steps) for rank in run.ranks] == [UPDATES] * RANKS
    assert all(rank.clean and rank.reducers for rank in run.ranks)
