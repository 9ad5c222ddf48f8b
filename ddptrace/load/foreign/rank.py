"""One rank's torch.profiler files, recorded without ddptrace: makes its `RankRun` from them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.findings import RANK_CLAIMED_TWICE, SEVERAL_PROCESSES, STEPS_RENUMBERED, TRACE_UNREADABLE, Finding
from ddptrace.load.foreign.units import UnitName, reducers_of, units_of, with_their_stages
from ddptrace.load.foreign.window import ForeignWindow, foreign_window
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.sources import TraceFile
from ddptrace.load.tables import Call, DeviceWork, LoadedRank, PhaseMark, RankRun, StepMark
from ddptrace.load.windows.comm_kernels import CommRule
from ddptrace.load.windows.device import KinetoWork
from ddptrace.rows import replaced

LISTED = 3


def load_traces(
    file: TraceFile, *, zero_unix_ns: int, cache: Path | None = None, rules: Sequence[CommRule] = ()
) -> LoadedRank:
    """Read the rank's files. A file that cannot be read becomes a finding, and the others are used.

    `zero_unix_ns`: the run's zero. `cache`: see `read_kineto`. `rules`: kernels that communicate, beside those known.
    """
    findings: list[Finding] = []
    windows = [
        window
        for path in file.paths
        if (window := _read(path, file.rank, zero_unix_ns, cache, rules, findings)) is not None
    ]
    windows = _on_one_thread(_apart(windows, file.rank, findings))
    findings += _several_processes(windows, file.rank)
    sizes = [window.facts.world_size for window in windows if window.facts.world_size is not None]
    return LoadedRank(_run(file.rank, windows, findings), tuple(findings), max(sizes, default=None))


def device_work(
    file: TraceFile, *, zero_unix_ns: int, cache: Path | None = None, rules: Sequence[CommRule] = ()
) -> tuple[DeviceWork, ...]:
    """Return only the device's activity, by file, without the context of launches. Raises RunDirectoryError if a file
    cannot be read."""
    works = (
        KinetoWork.of(read_kineto(path, cache).since(zero_unix_ns), rules).table(with_scopes=False)
        for path in file.paths
    )
    return tuple(work for work in works if work is not None)


def _read(
    path: Path, rank: int, zero_unix_ns: int, cache: Path | None, rules: Sequence[CommRule], findings: list[Finding]
) -> ForeignWindow | None:
    where = f"rank {rank}, {printable(path.name)}"
    try:
        events = read_kineto(path, cache)
        window = foreign_window(events, file=printable(path.name), where=where, zero_unix_ns=zero_unix_ns, rules=rules)
    except (RunDirectoryError, ValueError, IndexError, OverflowError, MemoryError) as error:
        findings.append(TRACE_UNREADABLE(where, printable(str(error)) or "too large for this memory"))
        return None
    findings.extend(window.findings)
    return window


def _apart(windows: Sequence[ForeignWindow], rank: int, findings: list[Finding]) -> list[ForeignWindow]:
    """Return the windows in time order. A file that overlaps another was written by another process, whatever it
    claims."""
    kept: list[ForeignWindow] = []
    filled = [window for window in windows if window.window.begin_at_ns != window.window.end_at_ns]
    for window in sorted(filled, key=attrgetter("window.begin_at_ns")):
        if kept and window.window.begin_at_ns < kept[-1].window.end_at_ns:
            message = (
                f"this file claims rank {rank}, as {kept[-1].window.file} does, and both ran at the same time, so it "
                f"is left out; name the files by their ranks (rank-{rank}.json)"
            )
            findings.append(RANK_CLAIMED_TWICE(f"rank {rank}, {window.window.file}", message))
        else:
            kept.append(window)
    return kept or list(windows[:1])


def _on_one_thread(windows: Sequence[ForeignWindow]) -> list[ForeignWindow]:
    """Give all windows the main thread of the first: another process had another main thread."""
    return [
        window if window.main_thread == windows[0].main_thread else _moved(window, windows[0].main_thread)
        for window in windows
    ]


def _moved(window: ForeignWindow, thread: int) -> ForeignWindow:
    phases = tuple(replaced(mark, thread=thread) for mark in window.phases)
    calls = tuple(replaced(call, thread=thread) if call.thread == window.main_thread else call for call in window.calls)
    return dataclasses.replace(window, phases=phases, calls=calls, main_thread=thread)


def _several_processes(windows: Sequence[ForeignWindow], rank: int) -> Iterator[Finding]:
    changes = [pair for pair in itertools.pairwise(windows) if _is_restart(*pair)]
    if changes:
        first, listed = f"pid {windows[0].pid}", changes[:LISTED]
        gaps_s = [(new.window.begin_at_ns - old.window.end_at_ns) / 1e9 for old, new in listed]
        later = [f"pid {new.pid} {gap_s:,.3g} s later" for (_, new), gap_s in zip(listed, gaps_s, strict=True)]
        message = (
            f"the files of rank {rank} come from different processes ({', '.join([first, *later])}"
            + (f" and {len(changes) - LISTED} more" if len(changes) > LISTED else "")
            + "): a restarted job or separate runs, shown as one run; give the files of one run to see it alone"
        )
        yield SEVERAL_PROCESSES(f"rank {rank}", message)


def _is_restart(old: ForeignWindow, new: ForeignWindow) -> bool:
    return old.pid != new.pid and old.pid != 0 and new.pid != 0


def _run(rank: int, windows: Sequence[ForeignWindow], findings: list[Finding]) -> RankRun:
    windows, units = with_common_units(windows)
    calls = tuple(_numbered_calls(call for window in windows for call in window.calls))
    hosts = [window.facts.host for window in windows if window.facts.host]
    devices = [window.facts.device_name for window in windows if window.facts.device_name]
    groups = {group.name: group for window in windows for group in window.groups}
    on_device = any(window.window.on_device for window in windows)
    unit_events = tuple(event for window in windows for event in window.unit_events)
    return RankRun(
        rank=rank,
        host=next(iter(hosts), ""),
        pid=windows[0].pid if windows else 0,
        device=next(iter(devices), "" if on_device or not windows else "cpu"),
        clean=True,
        dropped=0,
        begin_at_ns=windows[0].window.begin_at_ns if windows else 0,
        end_at_ns=windows[-1].window.end_at_ns if windows else 0,
        steps=tuple(_numbered_steps(windows, rank, findings)),
        phases=tuple(_numbered_phases(windows)),
        calls=calls,
        hooks=(),
        ready=(),
        reducers=reducers_of(calls, next((window.reducer_kind for window in windows if window.reducer_kind), "")),
        groups=tuple(groups.values()),
        windows=tuple(window.window for window in windows),
        pauses=(),
        recorded=False,
        serves=next((window.serves for window in windows if window.serves), ""),
        units=with_their_stages(units_of(units, calls), unit_events),
        unit_events=unit_events,
    )


def with_common_units(windows: Sequence[ForeignWindow]) -> tuple[list[ForeignWindow], tuple[UnitName, ...]]:
    """Return the windows with one number for each unit, and the units' names by number from 1."""
    names = tuple(dict.fromkeys(name for window in windows for name in window.units))
    return [window if window.units == names else _with_units(window, names) for window in windows], names


def _with_units(window: ForeignWindow, names: Sequence[UnitName]) -> ForeignWindow:
    numbers = {number: 1 + names.index(name) for number, name in enumerate(window.units, start=1)}
    calls = (call if call.unit is None else replaced(call, unit=numbers[call.unit]) for call in window.calls)
    events = (dataclasses.replace(event, unit=numbers[event.unit]) for event in window.unit_events)
    return dataclasses.replace(window, calls=tuple(calls), unit_events=tuple(events), units=tuple(names))


def _numbered_calls(calls: Iterable[Call]) -> Iterator[Call]:
    """Number the calls: `seq` from 1, `ordinal` from 0 in each group."""
    seen: dict[str, int] = defaultdict(int)
    for seq, call in enumerate(calls, start=1):
        yield replaced(call, seq=seq, ordinal=seen[call.group])
        seen[call.group] += 1


def _numbered_steps(windows: Sequence[ForeignWindow], rank: int, findings: list[Finding]) -> Iterator[StepMark]:
    """Yield the steps with the profiler's numbers. If a later window counts from the beginning again, its steps
    continue from the last. A finding reports that, unless the window is from another process, which has a finding
    already."""
    last = -1
    for window, before in zip(windows, (None, *windows), strict=False):
        first = window.steps[0].ordinal if window.steps else last + 1
        shift = last + 1 - first if first <= last else 0
        is_restart = before is not None and _is_restart(before, window)
        if shift and not is_restart and window.steps[0].ended_by.name == "SAID":
            message = f"the steps of this file begin at {first} again: they are shown from {last + 1} on"
            findings.append(STEPS_RENUMBERED(f"rank {rank}, {window.window.file}", message))
        for step in window.steps:
            last = max(last + 1, step.ordinal + shift)
            yield replaced(step, ordinal=last)


def _numbered_phases(windows: Sequence[ForeignWindow]) -> Iterator[PhaseMark]:
    """Number backwards over all windows."""
    first = 0
    for window in windows:
        ordinals = [mark.backward for mark in window.phases if mark.backward is not None]
        for mark in window.phases:
            yield mark if mark.backward is None else replaced(mark, backward=first + mark.backward)
        first += len(ordinals)
