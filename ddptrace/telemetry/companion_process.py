"""The companion itself, as far as it needs no package of others: it talks with the training, and says in a sentence
what keeps it from its work."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError, printable
from ddptrace.telemetry.companion import DROP
from ddptrace.telemetry.extra import extra

NICE: Final = 10


def main(root: str, host: str, inode: str, is_first: str, fd: str) -> None:
    """Arguments as `companion.Companion` gives them. Ends the process."""
    training = Training(socket.socket(fileno=int(fd)))
    trouble: str | None = None
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        with extra():
            from ddptrace.telemetry.companion_work import Work
        trouble = Work(Path(root), host, int(inode), training, say).do(is_first=is_first == "1")
    except DdptraceError as error:
        trouble = f"telemetry was not exported: {error}"
        say(trouble)
    except Exception as error:
        trouble = f"telemetry was not exported ({type(error).__name__}: {error})"
        traceback.print_exc()
    training.tell(done=True, trouble=trouble)
    sys.stderr.flush()
    os._exit(0)  # a thread may still stand in an attempt


def say(sentence: str) -> None:
    """Into the log."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"{now} {socket.gethostname()}[{os.getpid()}] {printable(sentence)}", file=sys.stderr, flush=True)


class Training:
    """The process that this one accompanies. `left` is set when it has left its trace, or is gone. Until then it reads
    nothing, so that of what it is told only the newest is kept for it; the last word is sent in any case."""

    def __init__(self, connection: socket.socket) -> None:
        self.left = threading.Event()
        self.left_at_s = float("inf")
        self._connection = connection
        self._lock = threading.Lock()
        self._newest: bytes | None = None
        threading.Thread(target=self._listen, name="ddptrace-training", daemon=True).start()

    def tell(self, *, done: bool, trouble: str | None) -> None:
        """Waits for nothing."""
        with self._lock:
            self._newest = json.dumps({"done": done, "trouble": trouble}).encode() + b"\n"
            if done or self.left.is_set():
                self._send(self._newest)

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, or stopped for so long that there is no room
            self._connection.send(line, socket.MSG_DONTWAIT)

    def _listen(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = self._connection.recv(len(DROP))
        if said == DROP:
            os._exit(0)
        self.left_at_s = time.monotonic()
        with self._lock:
            self.left.set()
            if self._newest is not None:
                self._send(self._newest)
