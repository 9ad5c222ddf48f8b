"""Runs programs that start their ranks by themselves."""

from __future__ import annotations

from tests.launch import PROGRAMS, environment, server
from tests.ranks import Job, torchruns_environ

NO_LAUNCHER: dict[str, str | None] = dict.fromkeys(torchruns_environ(0, 1, 0))


def self_launched(program: str, *arguments: object, timeout_s: float = 120) -> Job:
    """Run the program as a fork, as no launcher starts it; what it said. Fails the test where it fails."""
    argv = [str(PROGRAMS / program), *map(str, arguments)]
    with server().started(argv, 1, environment(), to_the_end=True, torchrun=NO_LAUNCHER) as job:
        statuses = job.statuses(timeout_s)
    assert statuses == [0], job.said
    return job
