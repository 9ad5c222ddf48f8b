"""Real runs to be spoiled: recorded once, small, and of every shape that a run directory has."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from ddptrace.cli import main
from tests.launch import PROGRAMS, environment, server, torchrun
from tests.self_launched import self_launched
from tests.unit import foreign_files

STEPS: Final = 6
PATIENCE_S: Final = 60


def ddp(folder: Path) -> None:
    torchrun("ddp.py", folder / "ddp", "--steps", STEPS)


def profiled(folder: Path) -> None:
    torchrun("ddp.py", folder / "profiled", "--steps", STEPS + 1, "--profile")


def killed(folder: Path) -> None:
    """Rank 1 was killed in a step, and the launcher ended the other: nothing is finished."""
    run, flag = folder / "killed", folder / "killed.flag"
    argv = [str(PROGRAMS / "ddp.py"), str(run), "--pause-at", str(STEPS - 1)]
    with server().started(argv, 2, environment(), to_the_end=False) as training:
        until = time.monotonic() + PATIENCE_S
        while not flag.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(json.loads((run / "rank-00001" / "meta.json").read_text())["pid"], signal.SIGKILL)
        training.statuses(PATIENCE_S)


def rpc(folder: Path) -> None:
    """Two trainers with DDP, a parameter server and a master."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        self_launched("rpc_hybrid.py", place, timeout_s=PATIENCE_S)
        Path(place, "run").rename(folder / "rpc")


def restarted(folder: Path) -> None:
    """The same job twice, the second time in an attempt's folder."""
    shutil.copytree(folder / "ddp", folder / "restarted")
    again = shutil.copytree(folder / "ddp", folder / "restarted" / "attempt-1")
    said = json.loads((again / "manifest.json").read_text())
    (again / "manifest.json").write_text(json.dumps(said | {"attempt": 1}))


def analyzed(folder: Path) -> None:
    """With what `ddptrace analyze` has written beside it."""
    shutil.copytree(folder / "profiled", folder / "analyzed")
    assert CliRunner().invoke(main, ["analyze", str(folder / "analyzed")]).exit_code == 0


def traces(folder: Path) -> None:
    """Profiler files alone: of a rank on a CPU, packed, and of one on a device, plain."""
    found = folder / "traces"
    found.mkdir()
    shutil.copy(next((folder / "profiled" / "rank-00000").glob("kineto-*")), found / "rank-0.json.gz")
    (found / "rank-1.json").write_text(json.dumps(device_trace()))


def device_trace() -> dict[str, Any]:
    """Three steps with a collective each, as torch.profiler writes them on a GPU."""
    events = []
    for step in range(3):
        at = 1000.0 * step
        events += [
            foreign_files.said(f"ProfilerStep#{step}", at, at + 900),
            foreign_files.op("aten::mm", at + 10, at + 200),
            foreign_files.launch(10 * step + 1, at + 20, at + 25),
            foreign_files.kernel("sgemm_128x64", 10 * step + 1, at + 30, at + 400),
            *foreign_files.nccl(10 * step + 2, at + 210, at + 300, at + 600),
        ]
    about = {"rank": 1, "world_size": 2, "backend": "nccl", "pg_config": [{"pg_name": "0", "ranks": "[0, 1]"}]}
    return {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events, "baseTimeNanoseconds": 0}


BASES: Final = (ddp, profiled, killed, rpc, restarted, analyzed, traces)


def record(folder: Path) -> dict[str, Path]:
    """By name, each base in a folder of that name; those that are there already are taken as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for make in BASES:
        if not (folder / make.__name__).exists():
            make(folder)
    return {make.__name__: folder / make.__name__ for make in BASES}


def kineto_json(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
