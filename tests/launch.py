"""Starts real training processes for the tests."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ranks import Ranks

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "programs"
WARM = ("torch._dynamo", "ddptrace.capture.session", "ddptrace.record.directory")


def torchrun(
    program: str | Path, *args: object, ranks: int = 2, timeout_s: float = 120, has_dynamo: bool = True
) -> str:
    """Run a program on `ranks` local processes, forked and not started anew; its output. Fails the test where it fails.

    `has_dynamo`: Dynamo and ddptrace are imported already. Stock DDP and every optimizer import Dynamo, which takes
    most of a small program's processor time; a program finds the modules that torchrun gives it only if this is False.
    `command` is the real torchrun, for tests of how programs start and end.
    """
    argv = [str(PROGRAMS / program), *map(str, args)]
    return as_ranks(argv, ranks=ranks, timeout_s=timeout_s, has_dynamo=has_dynamo)


def as_ranks(argv: list[str], ranks: int = 2, timeout_s: float = 120, has_dynamo: bool = True) -> str:
    """Run `python ARGV` as `torchrun` above does: `argv` may begin with `-m` and a module."""
    well, said = server(has_dynamo).run(argv, ranks, environment(), timeout_s)
    assert well, said
    return said


@functools.cache
def server(has_dynamo: bool = True) -> Ranks:
    return Ranks(environment(), ROOT, WARM if has_dynamo else ())


def command(program: str | Path, *args: object, ranks: int = 2) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, str(PROGRAMS / program), *map(str, args)]


def in_foreground(command: Sequence[str]) -> list[str]:
    """Return `command` as a terminal starts it: it hears Ctrl-C. What a shell starts in the background does not, and
    neither do its children: these tests, perhaps."""
    return ["env", "--default-signal=INT", *command]


def in_background(command: Sequence[str]) -> list[str]:
    """Return `command` as a shell without job control starts it for `&`: it does not hear Ctrl-C."""
    return ["env", "--ignore-signal=INT", *command]


def environment() -> dict[str, str]:
    """The tests' own, with one thread a rank: more would only fight over the cores."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
