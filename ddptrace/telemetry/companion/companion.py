"""Starts the companion, the process that exports a training as the `OTEL_*` variables ask, and waits for it at the end.

The companion is no child of the training, so a program that waits for its children does not wait for it. It has its own
session, so Ctrl-C ends the job and not the delivery. Of the program's open files it has only one socket:

    training ── b"left", end of file ──▶ companion
             ◀── {"done": bool, "trouble": str | None} a line ──

`Training` is the companion's end of that socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.environment import check_extra, wanted, warn

LOG: Final = "export.log"
APPENDING: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Never follows a link, and never blocks a training on a pipe that nobody reads."""
LEAVE_S: Final = 2.0
"""The longest that leaving the trace waits for the delivery of the last records."""
GRACE_S: Final = 10.0
"""How long the companion goes on after that."""
START_S: Final = 5.0

LEFT: Final = b"left\n"
DROP: Final = b"drop\n"

BOOT: Final = (
    "import os, sys; os.fork() and os._exit(0); import site; site.main(); sys.path.append(sys.argv[1]); "
    "from ddptrace.telemetry.companion.process import main; main(*sys.argv[2:])"
)
"""It forks before it looks for packages, because training waits until then. It finds ddptrace where this process found
it; that folder comes last, so that it hides no module of Python's."""
ALONE: Final = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
NOT_PASSED: Final = ("PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONSTARTUP")


def companion_for(root: Path, folder: Path, rank: int | None, environ: Mapping[str, str]) -> Companion | None:
    """Start the companion of this host's ranks, if this is the first of them and the environment asks for export.

    Never raises. `folder` is this rank's, in `root`. `rank` is None while it is unknown; if the launcher does not
    number local ranks, the companion then reads it from the folder.
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
    except Exception as error:  # the process cannot be started: the training goes on
        warn(f"ddptrace exports no telemetry: {type(error).__name__}: {error}", stacklevel=4)
    return None


class Companion:
    """The training's handle on the process. Make it inside the trace, once the rank has its folder.

    `environ` is the environment of the process. `is_first`: this is known to be the host's first rank.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, root: Path, folder: Path, environ: Mapping[str, str], *, is_first: bool) -> None:
        self._root = root.absolute()
        self._inode = folder.stat().st_ino  # the folder may be renamed
        self._pid = os.getpid()
        self._left_at_s: float | None = None
        self._is_at_work = False  # it has sent any line
        self._trouble: str | None = None
        self._unread = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._start(theirs, environ, is_first)

    def _start(self, theirs: socket.socket, environ: Mapping[str, str], is_first: bool) -> None:
        package = Path(__file__).parents[3]
        arguments = [self._root, socket.gethostname(), self._inode, int(is_first), theirs.fileno()]
        passed = {name: value for name, value in environ.items() if name not in NOT_PASSED} | ALONE
        with os.fdopen(os.open(self._root / LOG, APPENDING, 0o666), "ab") as log:
            first = subprocess.Popen(
                [sys.executable, "-S", "-P", "-c", BOOT, str(package), *map(str, arguments)],
                env=passed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(START_S)  # it forks and ends

    def drop(self) -> None:
        """End the companion without exporting anything."""
        self._end(DROP)

    def left(self) -> None:
        """Tell the companion that training has ended. `leave` follows, and counts its time from here."""
        if self._left_at_s is None and os.getpid() == self._pid:
            self._left_at_s = time.monotonic()
            self._send(LEFT)

    def leave(self) -> None:
        """Wait at most `LEAVE_S` seconds until all is delivered, and warn of what was not. Do nothing in a forked
        child."""
        if os.getpid() != self._pid:
            self._socket.close()
            return
        self.left()
        is_done = self._is_done_by((self._left_at_s or 0.0) + LEAVE_S)
        self._socket.close()
        if is_done is None:
            warn(f"ddptrace: the process that exports telemetry has ended too early; {self._where()}", stacklevel=4)
        elif not is_done:
            doing = "sending" if self._is_at_work else "starting"
            why = self._trouble or f"the process that exports it is still {doing}"
            warn(
                f"ddptrace: not all telemetry was delivered {LEAVE_S:g} s after the end of training ({why}); "
                f"delivery goes on for {GRACE_S:g} s more, {self._where()}",
                stacklevel=4,
            )
        elif self._trouble:
            warn(f"ddptrace: {self._trouble}; {self._where()}", stacklevel=4)

    def _where(self) -> str:
        """Say where to find more, without repeating the command if the companion named it."""
        more = f"see {self._root / LOG}"
        if "`ddptrace export" in (self._trouble or ""):
            return more
        return f"{more}, and `ddptrace export {self._root}` delivers it from the directory"

    def _is_done_by(self, until_s: float) -> bool | None:
        """Whether the companion is done by then; None if its process is gone."""
        while True:  # read what has arrived by now even if time is up
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
        """Read its lines. Return whether it is done."""
        *lines, self._unread = (self._unread + received).split(b"\n")
        is_done = False
        for line in lines:
            report = json.loads(line)
            self._trouble, is_done, self._is_at_work = report["trouble"], report["done"], True
        return is_done

    def _send(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended; its earlier lines may still be there
            self._socket.sendall(word)

    def _end(self, word: bytes) -> None:
        if os.getpid() == self._pid:
            self._send(word)
        self._socket.close()


class Training:
    """The process that this companion exports. `left` is set when it has left its trace, or is gone.

    The training reads nothing before that, so only the newest report is kept for it. The last one is always sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.left = threading.Event()
        self.left_at_s = float("inf")
        self._connection = connection
        self._lock = threading.Lock()
        self._newest: bytes | None = None
        threading.Thread(target=self._listen, name="ddptrace-training", daemon=True).start()

    def tell(self, *, done: bool, trouble: str | None) -> None:
        """Report to the training, without waiting. `trouble` is what has not been delivered."""
        with self._lock:
            self._newest = json.dumps({"done": done, "trouble": trouble}).encode() + b"\n"
            if done or self.left.is_set():
                self._send(self._newest)

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, or was stopped until the socket was full
            self._connection.send(line, socket.MSG_DONTWAIT)

    def _listen(self) -> None:
        word = b""
        with contextlib.suppress(OSError):
            word = self._connection.recv(len(DROP))
        if word == DROP:
            os._exit(0)
        self.left_at_s = time.monotonic()
        with self._lock:
            self.left.set()
            if self._newest is not None:
                self._send(self._newest)
