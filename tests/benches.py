"""Runs `ddptrace bench` for little processor time: its ranks are forks, and its models compute less."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

from tests.command_line import ddptrace_says
from tests.launch import PROGRAMS, environment, server
from tests.ranks import Job, torchruns_environ

RANKS = 2
SMALL = PROGRAMS / "small_benches.py"
FORKING = PROGRAMS / "forking_bench.py"


def bench(*words: object, out: Path, ranks: int = RANKS, **environ: str) -> Job:
    """Run `ddptrace bench WORDS... --out OUT` as ranks that somebody else has started; what they said. They must not
    fail, and analyze every traced run once, however many things are told of it."""
    argv = [str(SMALL), *map(str, words), "--out", str(out)]
    with tempfile.TemporaryDirectory() as folder:
        with server().started(argv, ranks, environment() | {"ANALYZED": folder} | environ, to_the_end=False) as job:
            statuses = job.statuses(timeout_s=240)
        assert statuses == [0] * ranks, job.said
        analyzed = sum((Counter(json.loads(one.read_text())) for one in Path(folder).iterdir()), Counter[str]())
    assert analyzed == {file.parent.name: 1 for file in (out / "runs").rglob("manifest.json")}, analyzed
    return job


def bench_that_starts_ranks(*words: object, out: Path) -> Job:
    """Run `ddptrace bench WORDS... --out OUT` as a user types it; what it said. It must not fail. It starts its ranks
    itself, here as forks."""
    argv = [str(FORKING), *map(str, words), "--out", str(out)]
    alone = dict.fromkeys(torchruns_environ(0, 1, 0))
    with server().started(argv, 1, environment(), to_the_end=True, torchrun=alone) as job:
        statuses = job.statuses(timeout_s=240)
    assert statuses == [0], job.said
    return job


def refusal(*words: object) -> str:
    """What `ddptrace bench WORDS...` says where it refuses what a user asked, before it starts a rank."""
    done = ddptrace_says("bench", *words)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    return done.stderr
