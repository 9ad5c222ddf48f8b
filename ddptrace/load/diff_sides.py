"""Which runs a path stands for, where several may be meant: of one side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddptrace.load.run import expanded, runs_in
from ddptrace.load.run_folder import is_run, names_first_attempt

Inputs = tuple[Path, ...]
"""What together is one run: a run directory, or profiler files and folders of them."""


def runs_of(paths: Sequence[Path]) -> list[Inputs]:
    """Each run directory, each run directory in a folder of them, each other folder; and files, which are one run
    together. In the order of the paths, below them of their names.

    Raises RunDirectoryError where a glob matches nothing.
    """
    found: list[Inputs] = []
    files: list[Path] = []
    for path in expanded(paths):
        if path.is_dir() or names_first_attempt(path):
            found += _in_folder(path)
        else:
            files.append(path)
    return [*found, tuple(files)] if files else found


def _in_folder(path: Path) -> list[Inputs]:
    if names_first_attempt(path) or is_run(path):
        return [(path,)]
    return [(run,) for run in sorted(runs_in(path))] or [(path,)]
