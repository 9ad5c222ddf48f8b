"""Runs `ddptrace bench` for little processor time: its ranks are forks, and its models compute less."""

from __future__ import annotations

from tests.command_line import ddptrace_says
from tests.launch import PROGRAMS, environment, server
from tests.ranks import Job

RANKS = 2


def bench(*words: object) -> Job:
    """Run `ddptrace bench WORDS...` as two ranks that somebody else has started; what they said. They must not fail."""
    argv = [str(PROGRAMS / "small_benches.py"), *map(str, words)]
    with server().started(argv, RANKS, environment(), to_the_end=False) as job:
        statuses = job.statuses(timeout_s=240)
    assert statuses == [0] * RANKS, job.said
    return job


def refusal(*words: object) -> str:
    """What `ddptrace bench WORDS...` says where it refuses what a user asked, before it starts a rank."""
    done = ddptrace_says("bench", *words)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    return done.stderr
