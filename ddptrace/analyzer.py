"""`ddptrace.analyze`: from a run directory to tables. Where load and analysis meet."""

from __future__ import annotations

import os

from ddptrace.analysis import Result, analyze_run
from ddptrace.load import read_run
from ddptrace.schema import run_path


def analyze(path: str | os.PathLike[str]) -> Result:
    """Tables of steps, phases, buckets, collectives and findings of the run in `path`. Needs no torch.

    Raises RunDirectoryError where there is no run, or one of another major schema version.
    """
    return analyze_run(read_run(run_path(path)))
