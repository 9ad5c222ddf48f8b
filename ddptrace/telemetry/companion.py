"""The process beside a training that exports it as the `OTEL_*` variables ask: started and left from here.

It is nobody's child, so that a program that waits for its children does not meet it; in a session of its own, so that
Ctrl-C ends the job and not what is still to be delivered; and holds nothing of the program's open but a socket:

    training ── b"left", end of file ──▶ companion
             ◀── {"done": bool, "trouble": str | None} a line ──
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.environment import wanted
from ddptrace.telemetry.extra import check_extra
from ddptrace.telemetry.warned import warn

LOG: Final = "export.log"
APPENDING: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not where a link leads; and a pipe that nobody reads keeps no training waiting."""
LEAVE_S: Final = 2.0
"""So long at most leaving the trace waits for what was recorded last to be delivered."""
GRACE_S: Final = 10.0
"""So long after it the companion goes on."""
START_S: Final = 5.0

LEFT: Final = b"left\n"
DROP: Final = b"drop\n"

BOOT: Final = (
    "import os, sys; os.fork() and os._exit(0); import site; site.main(); sys.path.append(sys.argv[1]); "
    "from ddptrace.telemetry.companion_process import main; main(*sys.argv[2:])"
)
"""It forks before it looks for packages: training waits for that. Ours is found wherever this process found it; its
folder comes last, so that it hides nothing of Python's."""
ALONE: Final = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
NOT_PASSED: Final = ("PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONSTARTUP")


def companion_for(root: Path, folder: Path, rank: int | None, environ: Mapping[str, str]) -> Companion | None:
    """One for the ranks of this host, if this is the first of them and anything is asked for. Raises nothing.

    `folder`: of this rank, in `root`. `rank` None: not known yet, and asked again by the companion where the launcher
    does not number local ranks.
    """
    local = environ.get("LOCAL_RANK", "").strip()
    if (local != "0") if local else rank not in (0, None):
        return None
    try:
        asked = wanted(environ)
        check_extra(asked)
        return Companion(root, folder, environ, is_first=bool(local) or rank == 0) if asked else None
    except DdptraceError as error:
        warn(f"ddptrace exports no telemetry: {error}", stacklevel=4)
    except Exception as error:  # no process can be started: the training goes on
        warn(f"ddptrace exports no telemetry: {type(error).__name__}: {error}", stacklevel=4)
    return None


class Companion:
    """Made inside the trace, once the rank has its folder. `environ`: what it is started with; `is_first`: it is known
    that this is the host's first rank. Raises OSError where no process can be started."""

    def __init__(self, root: Path, folder: Path, environ: Mapping[str, str], *, is_first: bool) -> None:
        self._root = root.absolute()
        self._inode = folder.stat().st_ino  # the folder may get another name
        self._pid = os.getpid()
        self._left_at_s: float | None = None
        self._is_at_work = False  # it has said anything
        self._trouble: str | None = None
        self._unread = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._start(theirs, environ, is_first)

    def _start(self, theirs: socket.socket, environ: Mapping[str, str], is_first: bool) -> None:
        package = Path(__file__).parents[2]
        told = [self._root, socket.gethostname(), self._inode, int(is_first), theirs.fileno()]
        passed = {name: value for name, value in environ.items() if name not in NOT_PASSED} | ALONE
        with os.fdopen(os.open(self._root / LOG, APPENDING, 0o666), "ab") as log:
            first = subprocess.Popen(
                [sys.executable, "-S", "-P", "-c", BOOT, str(package), *map(str, told)], env=passed,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(START_S)  # it forks, and ends

    def drop(self) -> None:
        """What was recorded is not to be exported after all."""
        self._end(DROP)

    def left(self) -> None:
        """Training has ended; `leave` follows, which counts its time from here."""
        if self._left_at_s is None and os.getpid() == self._pid:
            self._left_at_s = time.monotonic()
            self._send(LEFT)

    def leave(self) -> None:
        """Wait until all is delivered, for `LEAVE_S` at most, and warn of what was not. Nothing in a forked child."""
        if os.getpid() != self._pid:
            self._socket.close()
            return
        self.left()
        is_done = self._is_done_by((self._left_at_s or 0.0) + LEAVE_S)
        self._socket.close()
        if is_done is None:
            warn(
                f"ddptrace: the process that exports telemetry has ended before its time; {self._where()}", stacklevel=4
            )
        elif not is_done:
            doing = "sending" if self._is_at_work else "starting"
            why = self._trouble or f"the process that exports it is still {doing}"
            warn(
                f"ddptrace: not all telemetry was delivered {LEAVE_S:g} s after the end of training ({why}); this goes "
                f"on for {GRACE_S:g} s more, {self._where()}",
                stacklevel=4,
            )
        elif self._trouble:
            warn(f"ddptrace: {self._trouble}; {self._where()}", stacklevel=4)

    def _where(self) -> str:
        """Where more is to be learned; what it has said already is not said again."""
        more = f"{self._root / LOG} says more"
        if "`ddptrace export" in (self._trouble or ""):
            return more
        return f"{more}, and `ddptrace export {self._root}` delivers it from the directory"

    def _is_done_by(self, until_s: float) -> bool | None:
        """None where the process is no longer there."""
        while True:  # what it has said by now is heard even where the time is over
            self._socket.settimeout(max(0.01, until_s - time.monotonic()))
            try:
                received = self._socket.recv(4096)
            except TimeoutError:
                return False
            except OSError:
                return None
            if not received:
                return None
            if self._hear(received):
                return True

    def _hear(self, received: bytes) -> bool:
        """Whether it says that it is done."""
        *lines, self._unread = (self._unread + received).split(b"\n")
        is_done = False
        for line in lines:
            said = json.loads(line)
            self._trouble, is_done, self._is_at_work = said["trouble"], said["done"], True
        return is_done

    def _send(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended; what it said before may still be there
            self._socket.sendall(word)

    def _end(self, word: bytes) -> None:
        if os.getpid() == self._pid:
            self._send(word)
        self._socket.close()
