"""The five numbers of HTA (Holistic Trace Analysis) for one rank, and the rules by which they differ from ours.

A difference counts as explained only if our arithmetic, under the fewest of these rules, gives HTA's five numbers
exactly.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import DeviceWork, Work

Mask = NDArray[np.bool_]
OTHER_KIND: Final = 3
"""HTA's fourth kind beside those of `Work`: neither compute nor communication, but part of the busy time."""
EXACT_FLOATS: Final = 2**53
ALWAYS_NS: Final = -(2**62)  # the launch of what no rule on launches may drop


@dataclass(frozen=True, slots=True)
class Figures:
    """HTA's overlap and temporal breakdown of one rank. Times are ns here, in HTA whole or broken µs. None: HTA gave no
    number (NaN), or there is no such work."""

    overlap_pctg: float | None  # two decimals
    idle_ns: int | None
    compute_ns: int | None
    non_compute_ns: int | None
    kernel_ns: int | None  # first begin to last end


NO_FIGURES: Final = Figures(None, None, None, None, None)


def figures(begin: Ints, end: Ints, kind: Ints, float_zero_us: int | None = None) -> Figures:
    """Apply HTA's formulas to events in integer ns. Without negative lengths they equal those of unions.

    With `float_zero_us` (what HTA's instants count from) the lengths come with the errors of its float64 sums.
    """
    if not len(begin):
        return NO_FIGURES
    busy, compute, comm = (
        _merged(begin[chosen], end[chosen])
        for chosen in (np.ones(len(kind), np.bool_), kind == Work.COMPUTE, kind == Work.COMM)
    )
    kernel_ns = int(busy[-1, 1] - busy[0, 0])
    busy_ns, compute_ns = (
        _length(merged) if float_zero_us is None else _float_length(merged, float_zero_us) for merged in (busy, compute)
    )
    idle_ns = kernel_ns - busy_ns
    overlap = _overlap_pctg(comm, compute)
    return Figures(overlap, idle_ns, compute_ns, kernel_ns - compute_ns - idle_ns, kernel_ns)


def _merged(begin: Ints, end: Ints) -> Ints:
    """Groups of intervals that touch, shape (n, 2)."""
    if not len(begin):
        return np.empty((0, 2), np.int64)
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    opens = np.flatnonzero(np.append(True, begin[1:] > np.maximum.accumulate(end)[:-1]))
    return np.column_stack((begin[opens], np.maximum.reduceat(end, opens)))


def _length(merged: Ints) -> int:
    return int((merged[:, 1] - merged[:, 0]).sum())


def _float_length(merged: Ints, zero_us: int) -> int:
    """HTA takes the sum of all begins, integers, from that of all ends, floats, which is not exact beyond 2^53 µs."""
    begins, ends = ((merged[:, side] - zero_us * 1000) / 1000 for side in (0, 1))
    return round(float(ends.sum() - begins.astype(np.int64).sum()) * 1000)


def _overlap_pctg(comm: Ints, compute: Ints) -> float | None:
    """Both at once over communication, in percent; None where HTA divides by nothing."""
    comm_ns = _length(comm)
    if not comm_ns:
        return None
    at = np.concatenate((comm[:, 0], comm[:, 1], compute[:, 0], compute[:, 1]))
    change = np.repeat((1, -1, 2, -2), (len(comm), len(comm), len(compute), len(compute)))
    order = np.argsort(at, kind="stable")
    at, running = at[order], np.cumsum(change[order])
    both = np.flatnonzero(running[:-1] == 3)
    hidden_ns = int((at[both + 1] - at[both]).sum())
    return float(np.round(100 * (hidden_ns / comm_ns), 2))


class Rule(enum.StrEnum):
    """In the order in which they are applied."""

    ROUNDING = "rounding"  # begins rounded up and ends down to whole µs
    LAUNCHED = "launched"  # work without a launch in the file is left out
    STEPS = "steps"  # so is work launched when or after the last profiler step begins (or ends, where it is kept)
    NAMES = "names"  # kinds are told by patterns of HTA's own
    STRAYS = "strays"  # events that are no work of a device count as such, since they carry a stream
    FLOATS = "floats"  # instants are added up as float64, which is not exact where ranks ran days apart


@dataclass(frozen=True, slots=True)
class FileTimes:
    """When things were in one rank's file as HTA read it, before it drops anything."""

    base_ns: int  # Unix time from which the file's own times count
    begin_unix_ns: int  # of the first and last event
    end_unix_ns: int
    begins_us: Ints  # of all device work, whole µs in the file's own time, sorted
    launches_before_us: float | None  # later launches are dropped; None: no launch is


@dataclass(frozen=True, slots=True)
class Strays:
    """Events with a stream that are no kernel, copy or fill. In the file's own ns, shape (n,)."""

    begin_ns: Ints
    end_ns: Ints
    kind: Ints


@dataclass(frozen=True, slots=True)
class Reading:
    """What HTA made of one rank's file, as far as its rules depend on it."""

    times: FileTimes
    rounds: bool
    launched_only: bool
    kinds: Mapping[str, int]  # a kernel's name to `Work` or OTHER_KIND; every name that HTA met
    strays: Strays
    float_zero_us: int | None  # in the file's own time, what HTA counts from: the first event of all ranks; None: exact


@dataclass(frozen=True, slots=True)
class Applied:
    """One rule, and how many events it drops, changes or adds."""

    rule: Rule
    events: int


@dataclass(frozen=True, slots=True)
class Explained:
    """One rank: HTA's numbers (None: it failed), ours under all of its rules, ours of all work, and the rules that make
    the difference. `why` is None where no rules do."""

    rank: int
    hta: Figures | None
    under_its_rules: Figures
    ours: Figures
    why: tuple[Applied, ...] | None


@dataclass(frozen=True, slots=True)
class _Events:
    """Device work in the file's own ns."""

    begin: Ints
    end: Ints
    launched: Mask
    launch: Ints
    kind: Ints
    hta_kind: Ints


def explain(rank: int, hta: Figures | None, work: DeviceWork | None, reading: Reading, zero_unix_ns: int) -> Explained:
    """`work` is that of the window which the file holds, in time since the run's zero."""
    events = _events(work, reading, zero_unix_ns)
    rules = list(_applicable(events, reading))
    why = None if hta is None else _fewest(events, rules, reading, hta)
    everything = figures_under(events, [applied.rule for applied in rules], reading)
    return Explained(rank, hta, everything, figures_under(events, [], reading), why)


def figures_under(events: _Events, rules: Sequence[Rule], reading: Reading) -> Figures:
    for rule in Rule:
        if rule in rules:
            events = _RULES[rule](events, reading)
    return figures(events.begin, events.end, events.kind, reading.float_zero_us if Rule.FLOATS in rules else None)


def _fewest(events: _Events, rules: Sequence[Applied], reading: Reading, hta: Figures) -> tuple[Applied, ...] | None:
    for size in range(len(rules) + 1):
        for chosen in combinations(rules, size):
            if figures_under(events, [applied.rule for applied in chosen], reading) == hta:
                return chosen
    return None


def _applicable(events: _Events, reading: Reading) -> Iterator[Applied]:
    """Rules that change anything, each alone."""
    for rule in Rule:
        count = _inexact(events, reading) if rule == Rule.FLOATS else _touched(events, _RULES[rule](events, reading))
        if count:
            yield Applied(rule, count)


def _inexact(events: _Events, reading: Reading) -> int:
    """All events, where the sum of their ends may be beyond what float64 holds exactly."""
    if reading.float_zero_us is None or not len(events.end):
        return 0
    latest_us = int(events.end.max()) // 1000 - reading.float_zero_us
    return len(events.end) if latest_us * len(events.end) > EXACT_FLOATS else 0


def _touched(before: _Events, after: _Events) -> int:
    if len(before.begin) != len(after.begin):
        return abs(len(before.begin) - len(after.begin))
    changed = (before.begin != after.begin) | (before.end != after.end) | (before.kind != after.kind)
    return int(changed.sum())


def _events(work: DeviceWork | None, reading: Reading, zero_unix_ns: int) -> _Events:
    if work is None:
        none = np.empty(0, np.int64)
        return _Events(none, none, np.empty(0, np.bool_), none, none, none)
    since = _file_zero(work, reading.times, zero_unix_ns - reading.times.base_ns)
    kind = work.kind.astype(np.int64)
    told = np.array([reading.kinds.get(name, -1) for name in work.names] or [-1], np.int64)[work.name]
    return _Events(
        work.begin_at_ns + since,
        work.end_at_ns + since,
        work.launched,
        work.launch_begin_at_ns + since,
        kind,
        np.where(told < 0, kind, told),
    )


def _file_zero(work: DeviceWork, times: FileTimes, expected_ns: int) -> int:
    """What turns our instants into the file's own. A run directory's clock bends them by some ns, which decides what is
    rounded where: then the last shift under which each begin, rounded up, is the one that HTA has."""
    if len(work.begin_at_ns) != len(times.begins_us):
        return expected_ns
    latest = times.begins_us * 1000 - np.sort(work.begin_at_ns)
    last, first = int(latest.min()), int(latest.max()) - 999
    return last if first <= last and not first <= expected_ns <= last else expected_ns


def _rounded(events: _Events, reading: Reading) -> _Events:
    """As HTA computes it: in float64 µs, the end as begin plus duration. What is shorter than 1 µs may end before it
    begins, and then counts as negative time."""
    if not reading.rounds:
        return events
    begin_us, length_us = _microseconds(events.begin), _microseconds(events.end - events.begin)
    begin, end = _whole_ns(np.ceil(begin_us)), _whole_ns(np.floor(begin_us + length_us))
    return replace(events, begin=begin, end=end, launch=_whole_ns(np.ceil(_microseconds(events.launch))))


def _microseconds(ns: Ints) -> NDArray[np.float64]:
    """The float64 next to the decimal that the file holds."""
    return ns // 1000 + (ns % 1000) / 1000


def _whole_ns(us: NDArray[np.float64]) -> Ints:
    return us.astype(np.int64) * 1000


def _only_launched(events: _Events, reading: Reading) -> _Events:
    return _kept(events, events.launched) if reading.launched_only else events


def _early_launches(events: _Events, reading: Reading) -> _Events:
    if reading.times.launches_before_us is None:
        return events
    return _kept(events, ~events.launched | (_microseconds(events.launch) < reading.times.launches_before_us))


def _hta_kinds(events: _Events, reading: Reading) -> _Events:
    return replace(events, kind=events.hta_kind)


def _with_strays(events: _Events, reading: Reading) -> _Events:
    more, count = reading.strays, len(reading.strays.begin_ns)
    added = _Events(
        more.begin_ns, more.end_ns, np.ones(count, np.bool_), np.full(count, ALWAYS_NS), more.kind, more.kind
    )
    columns = [np.concatenate((getattr(events, field.name), getattr(added, field.name))) for field in fields(_Events)]
    return _Events(*columns)


_RULES: Final[Mapping[Rule, Callable[[_Events, Reading], _Events]]] = {
    Rule.ROUNDING: _rounded,
    Rule.LAUNCHED: _only_launched,
    Rule.STEPS: _early_launches,
    Rule.NAMES: _hta_kinds,
    Rule.STRAYS: _with_strays,
    Rule.FLOATS: lambda events, _: events,  # nothing of the events: their sums
}


def _kept(events: _Events, chosen: Mask) -> _Events:
    return _Events(*(getattr(events, field.name)[chosen] for field in fields(_Events)))
