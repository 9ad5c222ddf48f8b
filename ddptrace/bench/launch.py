"""Ranks as processes on this machine: start them together, end them together, and say why one failed.

    ddptrace bench ──line──▶ rank 0
                  ╰──line──▶ rank 1

A line is the standard input of a rank. It closes when this process ends, also by a kill, and then the rank ends itself.
A rank that fails sends the reason back over it, which needs no space on a disk. The last functions here are the rank's
end of the line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from ddptrace.engine import cores
from ddptrace.errors import DdptraceError

LINE: Final = 0
"""File descriptor of the line to the starter."""
WORDS_MAX: Final = 400
POLL_S: Final = 0.05
RANKS_A_CORE: Final = 16
"""More ranks only wait for each other, and that many processes can take the whole machine down."""
OURS = re.compile(r"^(\[rank\d+\]: )?(ddptrace\.errors\.\w+: )?")
"""What Python and torch print before our error message."""
NOISE = re.compile(r"^(\[rank\d+\]:\s*)?\[[WI]\d{4}|^USDT:")
"""Warnings of torch's C++ code, which may come after the error."""


@dataclass(frozen=True, slots=True)
class Started:
    process: subprocess.Popen[bytes]
    line: socket.socket
    log: IO[bytes]


def refuse_too_many(ranks: int) -> None:
    """Raise DdptraceError for more ranks than this machine can run."""
    most = RANKS_A_CORE * cores()
    if ranks > most:
        raise DdptraceError(
            f"{ranks} ranks are more than {RANKS_A_CORE} for each of the {cores()} cores here: "
            f"give --ranks {most} or fewer, or start them on several hosts with torchrun"
        )


def run_ranks(ranks: int, command: Sequence[str], folder: Path) -> None:
    """Run a command once for each rank, to its end. If one fails, end the others. Their output: `rank-<r>.log`.

    Raises: DdptraceError with the reason of the rank that failed first.
    """
    place = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(_free_port())}
    common = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | place | {"MASTER_ADDR": "127.0.0.1"}
    with ExitStack() as held:
        started = list[Started]()
        held.callback(_end, started)
        for rank in range(ranks):
            log = held.enter_context((folder / _log(rank)).open("w+b"))
            environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(_start(command, environment, sys.stderr if rank == 0 else log, log))
        failed = _failed(started)
        if failed:
            rank, words = _first(started, failed)
            raise DdptraceError(f"rank {rank} of {ranks} failed: {words} (its output: {folder / _log(rank)})")


def _start(command: Sequence[str], environment: dict[str, str], out: IO[Any], log: IO[bytes]) -> Started:
    ours, theirs = socket.socketpair()
    with theirs:
        return Started(
            subprocess.Popen(command, env=environment, stdin=theirs.fileno(), stdout=out, stderr=log), ours, log
        )


def _end(started: Sequence[Started]) -> None:
    for rank in started:
        rank.process.kill()
    for rank in started:
        rank.process.wait()
        rank.line.close()


def _failed(started: Sequence[Started]) -> list[int]:
    """Wait for all ranks. Returns those that failed as soon as there are any; others that fail because of them end a
    moment later."""
    while True:
        codes = [rank.process.poll() for rank in started]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed or None not in codes:
            return failed
        time.sleep(POLL_S)


def _first(started: Sequence[Started], failed: Sequence[int]) -> tuple[int, str]:
    """Return the rank that was killed or failed first, of those that ended at nearly the same time, and its last words.
    An abort is no sign of either: torch aborts when its peers are gone."""
    killed = [rank for rank in failed if 0 > (started[rank].process.returncode or 0) != -signal.SIGABRT]
    reasons = {rank: _reason(started[rank].line) for rank in killed or failed}
    rank = min(reasons, key=lambda rank: reasons[rank][0])
    return rank, reasons[rank][1] or _last_words(started[rank].log)


def _reason(line: socket.socket) -> tuple[float, str]:
    """Return when a rank failed, by the host's clock, and why; empty if it sent nothing."""
    with suppress(OSError, ValueError):
        at_ns, words = json.loads(line.recv(1 << 16, socket.MSG_DONTWAIT))
        return at_ns, words
    return float("inf"), ""


def _log(rank: int) -> str:
    return f"rank-{rank}.log"


def _last_words(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    words = [line for line in lines if not NOISE.search(line)]
    return OURS.sub("", words[-1])[-WORDS_MAX:] if words else "no output, it may have been killed"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def end_with_starter() -> None:
    """End this process when its starter is gone, also if that was killed, whatever this process does then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes: the starter decides

    def watch() -> None:
        with suppress(OSError):
            os.read(LINE, 1)
        os._exit(1)

    threading.Thread(target=watch, name="ddptrace-starter", daemon=True).start()


def end_failed(error: BaseException) -> NoReturn:
    """Send the reason over the line, which needs no space on a disk, and end before other ranks notice."""
    at_ns = time.monotonic_ns()
    with suppress(OSError):  # the log may be on a full disk
        traceback.print_exception(error)
    line = (str(error).splitlines() or [""])[0]
    words = line if isinstance(error, DdptraceError) else f"{type(error).__name__}: {line}"
    with suppress(OSError):
        os.write(LINE, json.dumps([at_ns, words[:WORDS_MAX]]).encode())
    os._exit(1)


def hear_signals() -> None:
    """Let signals end a rank that others started. It waits in C++ nearly all the time, where Python runs no
    handlers."""
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup asked to be left alone
            signal.signal(ending, signal.SIG_DFL)
