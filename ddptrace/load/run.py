"""Makes a plan of the paths that a user gives, reads each rank of it, and tells how the run was set up.

What reads profiler files is imported where there are some: a run without them is read in half the time.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ddptrace.errors import RunDirectoryError
from ddptrace.findings import Finding
from ddptrace.load.run_folder import (
    RecordedRank,
    is_run,
    is_searched,
    missing_ranks,
    names_first_attempt,
    open_folder,
    read_rank,
    records_of,
)
from ddptrace.load.tables import UNTOLD, DeviceWork, LoadedRank, NcclTold, Run
from ddptrace.record.directory import read_json
from ddptrace.schema import META, SCHEMA_VERSION, Kind

if TYPE_CHECKING:
    from ddptrace.load.sources import TraceFile
    from ddptrace.load.windows.comm_kernels import CommRule

LISTED: Final = 3
LOG: Final = ".log"
RUN_PARTS: Final = ("rank-", "attempt-")  # a run directory's folders are named so


@dataclass(frozen=True, slots=True)
class Reading:
    """How profiler files are read."""

    cache: Path | None = None  # folder for what was read once
    rules: tuple[CommRule, ...] = ()  # of the user, for communication kernels that ddptrace does not know


@dataclass(frozen=True, slots=True)
class TracedRank:
    """A rank's profiler files, without records of ours."""

    file: TraceFile
    zero_unix_ns: int

    @property
    def rank(self) -> int:
        return self.file.rank


@dataclass(frozen=True, slots=True)
class RankSource:
    """One rank to read, and how."""

    what: RecordedRank | TracedRank
    reading: Reading
    nbytes: int  # of its files, as they lie there


@dataclass(frozen=True, slots=True)
class Plan:
    """All that there is to read, before it is read: `load_rank` reads each source, in any process."""

    path: Path
    schema: str
    run_id: str
    zero_unix_ns: int
    world_size: int | None  # None: as the ranks say
    sources: tuple[RankSource, ...]  # by rank
    findings: tuple[Finding, ...]
    manifest: dict[str, Any]


def read_run(path: Path) -> Run:
    """Read a run directory (of a restarted job the last attempt that came to a step), or a folder of profiler files.

    Damage is dropped and reported in `findings`. Raises RunDirectoryError if there is no such directory, no run in it,
    or a run of another major schema version.
    """
    plan = open_run([path])
    loaded = [load_rank(source) for source in plan.sources]
    world_size, findings = settle(plan, loaded)
    ranks = tuple(one.run for one in loaded)
    return Run(plan.path, plan.schema, plan.run_id, plan.zero_unix_ns, world_size, ranks, findings, plan.manifest)


def open_run(paths: Sequence[Path], reading: Reading = Reading()) -> Plan:
    """Look at what is there: one run directory, or any profiler files, folders of them and globs.

    Raises RunDirectoryError as `read_run` does, and for several run directories, alone or among profiler files.
    """
    found = expanded(paths)
    if len(found) == 1 and ((_is_folder(found[0]) and is_run(found[0])) or names_first_attempt(found[0])):
        return _open_directory(found[0], reading)
    return _open_traces(paths, found, reading)


def load_rank(source: RankSource) -> LoadedRank:
    """Read one rank whole. Raises RunDirectoryError if its records have another major version."""
    what, reading = source.what, source.reading
    if isinstance(what, TracedRank):
        from ddptrace.load.foreign.rank import load_traces

        return load_traces(what.file, zero_unix_ns=what.zero_unix_ns, cache=reading.cache, rules=reading.rules)
    findings: list[Finding] = []
    recorded = read_rank(what, findings)
    run, found = recorded.run, list[Finding]()
    if recorded.windows or recorded.files_let_go:
        from ddptrace.load.windows.join import join_windows

        run, found = join_windows(what.folder, recorded, reading.cache, reading.rules)
    sizes = [len(group.ranks) for group in run.groups]
    return LoadedRank(run, (*findings, *found), max(sizes, default=None))


def load_device(source: RankSource) -> tuple[DeviceWork, ...]:
    """Read only the device's activity, by window. Raises RunDirectoryError if a profiler file cannot be read."""
    what, reading = source.what, source.reading
    if isinstance(what, TracedRank):
        from ddptrace.load.foreign.rank import device_work

        return device_work(what.file, zero_unix_ns=what.zero_unix_ns, cache=reading.cache, rules=reading.rules)
    return tuple(window.device for window in load_rank(source).run.windows if window.device is not None)


def told_by_nccl(folder: Path) -> tuple[NcclTold, tuple[Finding, ...]]:
    """Read the logs of NCCL that lie in the folder of a run, and report those that are left out."""
    logs = list(_logs(folder))
    if not logs:
        return UNTOLD, ()
    from ddptrace.load.nccl_files import read_logs

    return read_logs(logs)


def _logs(folder: Path) -> Iterator[Path]:
    """Yield the logs in a folder, in the order of their names."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if is_searched(name))
        logs = (Path(root, name) for name in sorted(names) if name.lower().endswith(LOG))
        yield from (path for path in logs if path.is_file())


class ReadRank(Protocol):
    """What reading a rank has found beside its tables."""

    @property
    def findings(self) -> tuple[Finding, ...]: ...
    @property
    def said_world_size(self) -> int | None: ...


def settle(plan: Plan, loaded: Iterable[ReadRank]) -> tuple[int | None, tuple[Finding, ...]]:
    """Return the world size and all findings, those of the plan first."""
    said, findings = plan.world_size, list(plan.findings)
    sizes: list[int] = []
    for one in loaded:
        findings += one.findings
        sizes += [] if one.said_world_size is None else [one.said_world_size]
    world_size = max(sizes, default=None) if said is None else said
    recorded = [source.what.rank for source in plan.sources if isinstance(source.what, RecordedRank)]
    findings += missing_ranks(world_size, recorded) if recorded else ()
    return world_size, tuple(findings)


def _open_directory(path: Path, reading: Reading) -> Plan:
    folder = open_folder(path)
    schema, run_id = str(folder.manifest.get("schema", SCHEMA_VERSION)), str(folder.manifest.get("run_id", ""))
    sources = tuple(RankSource(rank, reading, _nbytes(rank.folder.iterdir())) for rank in folder.ranks)
    rest = folder.world_size, sources, folder.findings, folder.manifest
    return Plan(path, schema, run_id, folder.zero_unix_ns, *rest)


def _open_traces(paths: Sequence[Path], found: Sequence[Path], reading: Reading) -> Plan:
    """`found`: what the paths stand for."""
    from ddptrace.load.sources import find_traces

    _refuse_runs(paths, [run for path in found for run in runs_in(path)])
    traces = find_traces(found)
    zero = traces.first_unix_ns
    sources = tuple(RankSource(TracedRank(file, zero), reading, _nbytes(file.paths)) for file in traces.files)
    names = b"\0".join(os.fsencode(path) for trace in traces.files for path in trace.paths)
    name = hashlib.sha256(names).hexdigest()
    return Plan(paths[0], SCHEMA_VERSION, name[:32], zero, traces.world_size, sources, traces.findings, {})


def _refuse_runs(paths: Sequence[Path], runs: Sequence[Path]) -> None:
    """Refuse run directories among profiler files: read as profiler files they would lose their records, and several
    would be merged."""
    if runs:
        where = f"{paths[0]} holds" if len(paths) == 1 else "the given paths hold"
        shown = ", ".join(str(run) for run in runs[:LISTED]) + (" …" if len(runs) > LISTED else "")
        what, how = ("run directories", "them one at a time") if len(runs) > 1 else ("a run directory", "it alone")
        raise RunDirectoryError(f"{where} {what} ({shown}): analyze {how}")


def runs_in(folder: Path) -> Iterator[Path]:
    """Yield run directories: the folder itself, else those below it."""
    for root, folders, _ in os.walk(folder):
        if any(name.startswith(RUN_PARTS) for name in folders) and is_run(Path(root)):
            folders.clear()
            yield Path(root)
        folders[:] = sorted(name for name in folders if is_searched(name))


def expanded(paths: Sequence[Path]) -> list[Path]:
    """Expand globs that no shell has expanded; a path that exists stays as it is."""
    found: list[Path] = []
    for path in paths:
        if not glob.has_magic(str(path)) or os.path.exists(path):  # noqa: PTH110 (false for what may not be looked at)
            found.append(path)
            continue
        matching = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 (may be absolute)
        if not matching:
            raise RunDirectoryError(
                f"nothing matches {path}; give profiler traces, a folder of them, or a run directory"
            )
        found += matching
    return found


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for the system
        return False


def _nbytes(files: Iterable[Path]) -> int:
    """Count a missing or unreadable path as nothing: reading it reports the reason."""
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


# How a run was set up -------------------------------------------------------------------------------------------------


SETTINGS_OF_RANKS: Final = {"cpus": "processors a rank may use", "torch_threads": "threads of a rank"}


def settings_of_run(plan: Plan) -> dict[str, str]:
    """Return the settings by name, in words. Empty for profiler files that others recorded."""
    manifest = plan.manifest
    versions = {name: value for name, value in _dict(manifest.get("versions")).items() if isinstance(value, str)}
    ranks = [source.what for source in plan.sources if isinstance(source.what, RecordedRank)]
    metas = [read_json(rank.folder / META) or {} for rank in ranks]
    found = {name: _listed(meta.get(key) for meta in metas) for key, name in SETTINGS_OF_RANKS.items()}
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
    return {str(_described_group(text).get("backend", "")) for text in texts}


def _described_group(text: str) -> dict[str, Any]:
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
