"""A rank's profiler windows: each Kineto file read and joined to the calls recorded in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddptrace.errors import RunDirectoryError
from ddptrace.load.clock import Clock
from ddptrace.load.comm_kernels import CommRule
from ddptrace.load.completion import known_over_by
from ddptrace.load.kineto import read_kineto
from ddptrace.load.kineto.events import KinetoEvents
from ddptrace.load.link import Joined, join_window
from ddptrace.load.records import Recorded, WindowMark
from ddptrace.load.tables import Call, ExecRange, Finding, RankRun, Window
from ddptrace.schema import Evidence


def join_windows(
    folder: Path, recorded: Recorded, cache: Path | None = None, rules: Sequence[CommRule] = ()
) -> tuple[RankRun, list[Finding]]:
    """The rank's run with its windows and, for the calls inside them, when they really ran. A file that is missing or
    broken is a finding; the records stand without it. `cache`: see `read_kineto`. `rules`: kernels that communicate,
    beside those known."""
    findings = _let_go(recorded)
    windows: list[Window] = []
    execs: dict[int, ExecRange] = {}
    for mark in recorded.windows:
        where = f"rank {recorded.run.rank}, {mark.file}"
        try:
            events = read_kineto(_place(folder, mark.file), cache)
            joined = _join(events, recorded, rules, where)
        except (RunDirectoryError, ValueError, IndexError, OverflowError, MemoryError) as error:
            message = f"{error}: the steps in it are judged without a profiler"
            findings.append(Finding("window-unreadable", "warning", where, message))
            continue
        findings.extend(joined.findings)
        execs |= joined.execs
        windows.append(_window(mark, events, joined, recorded.clock))
    calls = tuple(_ran(call, execs[call.seq]) if call.seq in execs else call for call in recorded.run.calls)
    return dataclasses.replace(recorded.run, calls=calls, windows=tuple(windows)), findings


def _place(folder: Path, file: str) -> Path:
    """Raises RunDirectoryError where a record leads elsewhere: only what is in the rank's own folder is its own."""
    place = folder / file
    if place.name != file or "\0" in file:
        raise RunDirectoryError(f"{file} is no name of a file in {folder.name}")
    return place


def _ran(call: Call, found: ExecRange) -> Call:
    """Before schema 1.6 a kernel alone tells that it ran on a device."""
    return dataclasses.replace(call, exec=found, on_device=call.on_device or found.evidence is Evidence.DEVICE)


def _let_go(recorded: Recorded) -> list[Finding]:
    if not recorded.files_let_go:
        return []
    message = (
        f"ddptrace.Keep let {recorded.files_let_go} profiler files go, the oldest first, to stay within its bound: the"
        " steps in them are judged without a profiler"
    )
    return [Finding("windows-let-go", "info", f"rank {recorded.run.rank}", message)]


def _join(events: KinetoEvents, recorded: Recorded, rules: Sequence[CommRule], where: str) -> Joined:
    run = recorded.run
    return join_window(
        events,
        unix_to_at=recorded.clock.from_unix,
        calls=run.calls,
        done_threads=recorded.done_threads,
        over_by=known_over_by(run.calls, run.phases),
        training_threads=frozenset(mark.thread for mark in run.phases),
        rules=rules,
        where=where,
    )


def _window(mark: WindowMark, events: KinetoEvents, joined: Joined, clock: Clock) -> Window:
    """Where torch did not tell when the window was open, it was from the first to the last event of the file."""
    begin, end = mark.begin_at_ns, mark.end_at_ns
    if begin is None or end is None:
        spans = clock.from_unix(np.stack((events.begin_ns, events.end_ns)))
        begin, end = (int(spans[0].min()), int(spans[1].max())) if spans.size else (0, 0)
    return Window(
        mark.file, begin, end, joined.compute, joined.memory, joined.on_device, joined.device, joined.operators,
        joined.searched_ns,
    )  # fmt: skip
