"""One rank of one hostile program: `rank.py PROGRAM MODE FOLDER`. What it says, computes and leaves lies in FOLDER."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ddptrace
from tests.hostile import faults, kept, left
from tests.hostile.modes import PLAIN, PROFILED
from tests.hostile.registry import PROGRAMS

WINDOWS = {"wait": 0, "warmup": 1, "active": 2}
"""One begins with the second step, and they go on to the end, so that the profiler runs whatever a program does."""


def main(name: str, mode: str, folder: Path) -> None:
    rank = os.environ["RANK"]
    speak_into(folder, rank)
    kept.keep_in(folder / f"kept-{rank}")
    program = PROGRAMS[name]
    torch.set_num_threads(1)
    torch.manual_seed(int(rank))
    os.environ["HOSTILE_FOLDER"] = str(folder)  # where a program finds its run
    left.begin()
    process = os.getpid()

    def trace(run: str = "run", **options: Any) -> AbstractContextManager[Any]:
        if mode == PLAIN:
            return contextlib.nullcontext()
        faults.plant(os.environ.get(faults.VARIABLE))
        profile = torch.profiler.schedule(**WINDOWS) if mode == PROFILED else None
        return ddptrace.trace(folder / run, profile=profile, **options)

    try:
        if program.places_the_trace:
            program.run(trace)
        else:
            with trace():
                program.run()
    finally:
        if os.getpid() == process and program.leaves:
            (folder / f"left-{rank}").write_text(json.dumps(left.left()))
    if not program.ends:
        leave()


def speak_into(folder: Path, rank: str) -> None:
    """Write into files, in blocks, also where PYTHONUNBUFFERED is set."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=False, write_through=False)  # type: ignore[union-attr]


def leave() -> None:
    """End without Python's shutdown, which takes 0.2 s, and in which stock Gloo DDP aborts now and then."""
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    if not PROGRAMS:  # a fresh interpreter
        import tests.hostile.warm  # noqa: F401
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
