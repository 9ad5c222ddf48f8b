"""Where a program's output goes, and what becomes of it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import keep_error, network, train

Trace = Callable[..., AbstractContextManager[Any]]


@program(ends=True)
def streams_closed() -> None:
    """Closes its streams in Python and by number, and trains on."""
    print("before", flush=True)
    sys.stdin.close()
    sys.stdout.close()
    sys.stderr.close()
    train()
    os.close(0)
    train()


@program(ends=True)
def streams_missing() -> None:
    """Has no streams at all, as a program without a terminal on some systems."""
    sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]
    sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
    train()
    warnings.warn("heard by nobody", stacklevel=1)


@program()
def streams_replaced(trace: Trace) -> None:
    """Replaces its streams before the trace and inside, with objects that count, and finds them there after it."""

    class Counts(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            Counts.writes += 1
            return super().write(text)

    mine = Counts()
    before = sys.stdout
    sys.stdout = mine
    with trace():
        train()
        print("to mine")
        with contextlib.redirect_stderr(mine), contextlib.redirect_stdout(io.StringIO()):
            train()
        keep(sys.stdout is mine)
    keep(sys.stdout is mine, Counts.writes, mine.getvalue())
    sys.stdout = before


@program()
def streams_that_raise() -> None:
    """Has streams that raise whenever they are written."""

    class Refuses(io.TextIOBase):
        def write(self, text: str) -> int:
            raise OSError("no")

    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = Refuses()  # type: ignore[assignment]
    train()
    keep_error(print, "x")
    sys.stdout, sys.stderr = before
    print("again")


@program(ends=True, code=120)
def pipe_closed() -> None:
    """Writes into a pipe that nobody reads any more, and ends as Python does then."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.dup2(write, 2)
    train()
    keep_error(os.write, 1, b"x")
    print("lost")


@program(code=-signal.SIGPIPE)
def pipe_closed_with_its_signal() -> None:
    """Ends by SIGPIPE, which it has not ignored as Python does."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    read, write = os.pipe()
    os.close(read)
    train()
    os.write(write, b"x")


@program(ends=True)
def output_in_pieces() -> None:
    """Writes without flushing, by number and by Python, bytes and lines, in odd encodings."""
    print("a", end="")
    os.write(1, b"b")
    train()
    sys.stdout.buffer.write(b"\xff\xfe")
    sys.stdout.reconfigure(encoding="latin-1", errors="replace")  # type: ignore[union-attr]
    print("ä \u2603")
    sys.stdout.write("no end")
    sys.stderr.write("nor here")


@program()
def files_of_its_own() -> None:
    """Opens, locks, maps and removes files and sockets while it trains."""
    import fcntl
    import mmap

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with path.open("w+b") as file:
            file.write(bytes(4096))
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            mapped = mmap.mmap(file.fileno(), 4096)
            train()
            mapped[:3] = b"abc"
            path.unlink()
            train()
            keep(mapped[:4])
            mapped.close()
    first, second = socket.socketpair()
    first.send(b"through")
    train()
    keep(second.recv(100))
    first.close()
    second.close()
    keep(tempfile.gettempdir())


@program(environ=(("OTEL_SDK_DISABLED", "true"), ("DDPTRACE_NONSENSE", "1"), ("PYTHONWARNINGS", "ignore")))
def odd_environment() -> None:
    """Runs with variables that others hear, and changes and clears its environment."""
    before = dict(os.environ)
    train()
    os.environ["RANK"] = "no number"
    os.environ["WORLD_SIZE"] = ""
    train()
    os.environ.clear()
    train()
    os.environ.update(before)


@program(records=False)
def unnumbered_rank(trace: Trace) -> None:
    """Has an environment that says nonsense of its rank."""
    os.environ.update(RANK="one", WORLD_SIZE="two", LOCAL_RANK="")
    with trace():
        train()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")


@program()
def names_of_any_kind() -> None:
    """Names modules, threads and files so that they could be taken for commands of a terminal or a page."""
    import threading

    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("\x1b[31m</script>\u202e", network())
            self.__class__.__name__ = "\x1b]0;title\x07 %s {}"

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return next(iter(self.children()))(inputs)  # type: ignore[no-any-return]

    thread = threading.Thread(target=train, args=(Strange(),), name="\ud800\n\x1b")
    thread.start()
    thread.join()
    code = compile("def strange(model, inputs):\n return model(inputs)\n", "\ud800/\x1b\n.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    keep(names["strange"](Strange(), torch.ones(1, 8)))
