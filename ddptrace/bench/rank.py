"""A process that measures for its starter: it ends when the starter is gone, and tells it why it failed.

Its line to the starter is its standard input; see `launch`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from typing import Final, NoReturn

from ddptrace.errors import DdptraceError

LINE: Final = 0
"""File descriptor of the line to the starter."""
WORDS_MAX: Final = 400


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
