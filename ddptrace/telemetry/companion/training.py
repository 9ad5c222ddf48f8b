"""The companion's end of the socket to its training."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time

from ddptrace.telemetry.companion.companion import DROP


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
