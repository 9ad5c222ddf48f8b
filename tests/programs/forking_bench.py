"""`ddptrace bench ...` as it starts its ranks, but these are forks, which need not import torch again.

The program itself must be alone: a process that has RANK would be one of the ranks.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import IO, Any, NoReturn

from ddptrace.bench import conduct, launch
from ddptrace.cli import main


class Forked:
    """A rank, with what `launch` asks of a process that it has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self) -> int | None:
        return self._ended(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def forked(command: Sequence[str], env: dict[str, str], stdin: int, stdout: IO[Any], stderr: IO[Any]) -> Forked:
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        become_rank(command, env, [stdin, stdout.fileno(), stderr.fileno()])
    return Forked(pid)


def become_rank(command: Sequence[str], environ: dict[str, str], files: list[int]) -> NoReturn:
    for fd, file in enumerate([os.dup(file) for file in files]):
        os.dup2(file, fd)
        os.close(file)
    os.environ.clear()
    os.environ.update(environ)
    conduct._be_a_rank(*command[-2:])
    raise AssertionError("a rank ends without coming back")


launch.subprocess.Popen = forked  # type: ignore[attr-defined, assignment, misc]
main(["bench", *sys.argv[1:]])
