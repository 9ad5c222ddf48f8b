"""The entry point of the companion. It imports only ddptrace and the standard library, so that it can report a missing
package to the training."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ddptrace.errors import DdptraceError, printable
from ddptrace.telemetry.companion.companion import Training
from ddptrace.telemetry.environment import extra

NICE: Final = 10


def main(root: str, host: str, inode: str, is_first: str, fd: str) -> None:
    """Export the run and end the process. `companion.Companion` gives the arguments."""
    training = Training(socket.socket(fileno=int(fd)))
    trouble: str | None = None
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        with extra():
            from ddptrace.telemetry.companion.work import Work
        trouble = Work(Path(root), host, int(inode), training, say).do(is_first=is_first == "1")
    except DdptraceError as error:
        trouble = f"telemetry was not exported: {error}"
        say(trouble)
    except Exception as error:
        trouble = f"telemetry was not exported ({type(error).__name__}: {error})"
        traceback.print_exc()
    training.tell(done=True, trouble=trouble)
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for a destination


def say(sentence: str) -> None:
    """Write a sentence into the log."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"{now} {socket.gethostname()}[{os.getpid()}] {printable(sentence)}", file=sys.stderr, flush=True)
