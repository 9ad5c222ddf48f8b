"""What a comparison needs of runs beside their tables: how each was set up, from its manifest and the descriptions of
its ranks (versions, threads, backends), and which runs a path stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ddptrace.errors import RunDirectoryError
from ddptrace.load.run import Plan, expanded, runs_in
from ddptrace.load.run_folder import RecordedRank, is_run, names_first_attempt, records_of
from ddptrace.record.directory import read_json
from ddptrace.schema import META, Kind

OF_RANKS: Final = {"cpus": "processors a rank may use", "torch_threads": "threads of a rank"}


def settings_of_run(plan: Plan) -> dict[str, str]:
    """Return the settings by name, in words. Empty for profiler files that others recorded."""
    manifest = plan.manifest
    versions = {name: value for name, value in _dict(manifest.get("versions")).items() if isinstance(value, str)}
    ranks = [source.what for source in plan.sources if isinstance(source.what, RecordedRank)]
    metas = [read_json(rank.folder / META) or {} for rank in ranks]
    found = {name: _listed(meta.get(key) for meta in metas) for key, name in OF_RANKS.items()}
    if ranks:
        found["backend"] = _listed(_backends(ranks[0].folder))
    if "watching" in manifest:
        found["collectives are seen by"] = str(_dict(manifest["watching"]).get("collectives", ""))
    return versions | {name: value for name, value in found.items() if value}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values if value not in (None, "")}))


def _backends(folder: Path) -> set[str]:
    """Return the backends of the rank's process groups."""
    try:
        records = records_of(folder)
    except RunDirectoryError:  # reading the run has told
        return set()
    events = records.events
    names = map(int, events["name"][events["kind"] == Kind.GROUP])
    texts = [records.strings[name] for name in names if name in records.strings]  # a name can be lost
    return {str(_group(text).get("backend", "")) for text in texts}


def _group(text: str) -> dict[str, Any]:
    try:
        return _dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}


# Which runs a path stands for -----------------------------------------------------------------------------------------


Inputs = tuple[Path, ...]
"""The paths of one run: a run directory, or profiler files and folders of them."""


def runs_of(paths: Sequence[Path]) -> list[Inputs]:
    """Return the runs that paths stand for: each run directory, each run directory in a folder of them, each other
    folder; all files together are one run. In the order of the paths, and by name below a path.

    Raises RunDirectoryError if a glob matches nothing.
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
