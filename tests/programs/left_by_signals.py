"""Enters and leaves traces while a timer's handler raises at a moment that the first argument tells, in steps through
all of entering and leaving. Prints how often the handler has raised, and what was wrong after it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

import ddptrace

WATCHED = ((nn.Module, "__call__"), (torch.autograd, "backward"), (torch.distributed.Work, "wait"), (os, "_exit"))


class Interrupted(BaseException):
    """No `Exception`, as KeyboardInterrupt is none."""


def handle(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def standing() -> list[Any]:
    return [vars(owner)[name] for owner, name in WATCHED]


def state(folder: Path) -> tuple[int, int, int]:
    """Open files of the run directory, their maps, and threads."""
    files = sum(f"{folder}/run/" in str(one.resolve()) for one in Path("/proc/self/fd").iterdir())
    maps = Path("/proc/self/maps").read_text()
    return files, maps.count(f"{folder}/run/"), threading.active_count()


def train() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def trial(folder: Path, after_s: float, *, while_leaving: bool) -> float | None:
    """The time that it took; None where the handler has raised."""
    begin = time.perf_counter()
    running = ddptrace.trace(folder, overwrite=True)
    try:
        if not while_leaving:
            signal.setitimer(signal.ITIMER_REAL, after_s)
        with running:
            train()
            begin = time.perf_counter() if while_leaving else begin
            if while_leaving:
                signal.setitimer(signal.ITIMER_REAL, after_s)
        took = time.perf_counter() - begin
        signal.setitimer(signal.ITIMER_REAL, 0)
        return took
    except Interrupted as error:
        if is_before_leaving(error.__traceback__):
            running.__exit__(None, None, None)
        return None


def is_before_leaving(at: TracebackType | None) -> bool:
    """Whether the handler ran before the first line of `__exit__`, as Python lets it: nothing is left then."""
    while at is not None:
        code = at.tb_frame.f_code
        if code is ddptrace.trace.__exit__.__code__ and at.tb_lineno == code.co_firstlineno:
            return True
        at = at.tb_next
    return False


def main(folder: Path, trials: int) -> None:
    signal.signal(signal.SIGALRM, handle)
    train()
    with ddptrace.trace(folder / "run"):
        train()
    before, at_rest = standing(), state(folder)
    raised, wrong = 0, []
    for while_leaving in (False, True):
        longest = max(trial(folder / "run", 10.0, while_leaving=while_leaving) or 0 for _ in range(3))
        for number in range(trials):
            raised += trial(folder / "run", max(1e-6, longest * number / trials), while_leaving=while_leaving) is None
            if standing() != before or signal.getsignal(signal.SIGALRM) is not handle:
                wrong.append(f"{while_leaving} {number}: patched")
            if state(folder) != at_rest:
                wrong.append(f"{while_leaving} {number}: {state(folder)} instead of {at_rest}")
            shutil.rmtree(folder / "run", ignore_errors=True)
    print(json.dumps({"raised": raised, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
