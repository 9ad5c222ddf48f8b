"""Ranks that are forks of this process, which has imported torch: one starts in milliseconds instead of seconds.

They end with this process, however it ends, and a failure of one ends the others.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from ddptrace.errors import DdptraceError

PR_SET_PDEATHSIG: Final = 1
PIPE_NBYTES: Final = 1 << 16
START_S: Final = 60.0
SECONDS_A_STEP: Final = 2.0
IMPORTED: Final = (
    "ddptrace.capture.session",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx",
    "sympy",
)
"""Modules that every rank uses, and those that stock DDP and its optimizers import in their first step."""


@dataclass(slots=True)
class _Fork:
    pid: int
    answers: int
    said: bytearray = field(default_factory=bytearray)
    is_done: bool = False


def prepare(folder: Path, *modules: str) -> None:
    """Import what ranks need, and `modules`, before they are forked; start no threads. Remove old runs in `folder`."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in (*modules, *IMPORTED):
        importlib.import_module(module)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").mkdir()
    (folder / "ranks.log").unlink(missing_ok=True)
    gc.collect()
    gc.freeze()


def limit_s(steps: int) -> float:
    """Return the seconds after which a run of this many steps hangs."""
    return START_S + SECONDS_A_STEP * steps


def in_forks(works: Sequence[Callable[[], Any]], log: Path, timeout_s: float) -> list[Any]:
    """Run each work in a fork, and return their results, which must be JSON. What they print goes into `log`.

    Raises: DdptraceError with the reason of the first that failed, or if they take longer than `timeout_s`.
    """
    forks: list[_Fork] = []
    try:
        for work in works:
            forks.append(_fork(work, log))  # noqa: PERF401 (if one fork fails, those before it must be ended)
        return _answers(forks, log, timeout_s)
    finally:
        _end(forks)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, so that this process cleans up what it made."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    heard = (number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN)
    before = {number: signal.signal(number, leave) for number in heard}  # nohup asked to ignore SIGHUP
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fork(work: Callable[[], Any], log: Path) -> _Fork:
    reading, writing = os.pipe()
    starter = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _become(work, log, writing, starter)
    os.close(writing)
    return _Fork(pid, reading)


def _become(work: Callable[[], Any], log: Path, answers: int, starter: int) -> NoReturn:
    """Work, answer and exit at once: Gloo sometimes aborts while Python shuts down."""
    try:
        _end_with(starter)
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes: the starter decides
        _speak_into(log)
        _tell(answers, {"answer": work()})
    except BaseException as error:
        traceback.print_exc()
        told = str(error) if isinstance(error, DdptraceError) else f"{type(error).__name__}: {error}"
        _tell(answers, {"error": (told.splitlines() or [""])[0]})
    os._exit(0)


def _end_with(starter: int) -> None:
    """Have the kernel kill this process when the one that forked it is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        os._exit(1)


def _speak_into(log: Path) -> None:
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(said)


def _tell(answers: int, answer: dict[str, Any]) -> None:
    with os.fdopen(answers, "w") as file:
        json.dump(answer, file)


def _answers(forks: Sequence[_Fork], log: Path, timeout_s: float) -> list[Any]:
    until = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as waiting:
        for fork in forks:
            waiting.register(fork.answers, selectors.EVENT_READ, fork)
        while waiting.get_map():
            ready = waiting.select(until - time.monotonic())
            if not ready:
                raise DdptraceError(f"ranks are not done after {timeout_s:.0f} s (their output: {log})")
            for key, _ in ready:
                if _hear(key.data):
                    waiting.unregister(key.fileobj)
                    _check(key.data, forks.index(key.data), log)
    return [json.loads(fork.said)["answer"] for fork in forks]


def _hear(fork: _Fork) -> bool:
    """Read what a fork sent. Returns whether that was all."""
    heard = os.read(fork.answers, PIPE_NBYTES)
    fork.said += heard
    fork.is_done = not heard
    return fork.is_done


def _check(fork: _Fork, position: int, log: Path) -> None:
    """Raise DdptraceError if the fork failed, or died before it could answer."""
    told = json.loads(fork.said) if fork.said else {"error": "it was killed"}
    if "error" in told:
        raise DdptraceError(f"rank {position} failed: {told['error']} (their output: {log})")


def _end(forks: Sequence[_Fork]) -> None:
    for fork in forks:
        if not fork.is_done:
            os.kill(fork.pid, signal.SIGKILL)
    for fork in forks:
        os.waitpid(fork.pid, 0)
        os.close(fork.answers)
