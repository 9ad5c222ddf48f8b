"""Processes that are forks of this one, which has torch: a rank starts in milliseconds and not in seconds.

They end with this process, however it ends, and a failure of one ends the others.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
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


@dataclass(slots=True)
class _Fork:
    pid: int
    answers: int
    said: bytearray = field(default_factory=bytearray)
    is_done: bool = False


def in_forks(works: Sequence[Callable[[], Any]], log: Path, timeout_s: float) -> list[Any]:
    """What each returned, which is JSON. What they print goes into `log`.

    Raises DdptraceError with the reason of the first that failed, or where they take too long.
    """
    forks: list[_Fork] = []
    try:
        for work in works:
            forks.append(_fork(work, log))  # noqa: PERF401 (each that is there is ended, whatever the next one does)
        return _answers(forks, log, timeout_s)
    finally:
        _end(forks)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Signals that would end this process at once raise SystemExit in it, so that it clears up what it has made."""

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
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
    """Nothing of this process's own end is run: Gloo now and then aborts in it."""
    try:
        _end_with(starter)
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who started us decides
        _speak_into(log)
        _tell(answers, {"answer": work()})
    except BaseException as error:
        traceback.print_exc()
        told = str(error) if isinstance(error, DdptraceError) else f"{type(error).__name__}: {error}"
        _tell(answers, {"error": (told.splitlines() or [""])[0]})
    os._exit(0)


def _end_with(starter: int) -> None:
    """Be killed when the process that forked this one is gone."""
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
                raise DdptraceError(f"ranks are not done after {timeout_s:.0f} s (all they said: {log})")
            for key, _ in ready:
                if _hear(key.data):
                    waiting.unregister(key.fileobj)
                    _check(key.data, forks.index(key.data), log)
    return [json.loads(fork.said)["answer"] for fork in forks]


def _hear(fork: _Fork) -> bool:
    """Whether that was all."""
    heard = os.read(fork.answers, PIPE_NBYTES)
    fork.said += heard
    fork.is_done = not heard
    return fork.is_done


def _check(fork: _Fork, position: int, log: Path) -> None:
    """Raises DdptraceError where it failed, or died before it could say so."""
    told = json.loads(fork.said) if fork.said else {"error": "it was killed"}
    if "error" in told:
        raise DdptraceError(f"rank {position} failed: {told['error']} (all they said: {log})")


def _end(forks: Sequence[_Fork]) -> None:
    for fork in forks:
        if not fork.is_done:
            os.kill(fork.pid, signal.SIGKILL)
    for fork in forks:
        os.waitpid(fork.pid, 0)
        os.close(fork.answers)
