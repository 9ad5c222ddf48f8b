"""What a person should know in ten seconds: the typical step, and which bucket costs it most.

The typical step is a mean over the middle half, by length, of the steps outside profiler windows. Step 0 and steps
that ddptrace held up are left out. Where too few steps are outside windows, those inside are taken (`typical_steps`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import mean, median
from typing import Any, Final, Protocol

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.rpc.digest import calls_in
from ddptrace.analysis.statistics import percentile
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.device import LaunchRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import RpcRow
from ddptrace.schema import Evidence
from ddptrace.units import duration, named, percent

PARTS: Final = ("compute", "exposed_comm", "exposed_memory", "idle")
PHASES: Final = ("data", "forward", "backward", "optimizer", "other")
PAUSED_MAX_RATIO: Final = 0.01
CUT_MAX_RATIO: Final = 0.6
"""A device window below this share of the following ones, in a step whose host time is not, was cut."""
MIN_OTHERS: Final = 2
LEAST_UNPROFILED: Final = 5
"""Steps outside profiler windows of which the typical step is made rather than of the profiled ones."""
UNLIKE_MIN_RATIO: Final = 0.25
"""Profiled steps whose length differs from the others' by more do not show how these divide."""
UNSURE_MAX_RATIO: Final = 0.5
"""Of the step. If events leave open for less whether the device computed, its parts are worth a judgement."""
WORTH_RATIO: Final = 0.02
"""Of the step: what costs less is not worth a change."""
FEW_STEPS: Final = 2
"""So few typical steps are named."""

BucketKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Share:
    """A named part of the typical step."""

    name: str  # of the part
    ns: int  # mean over the typical steps
    ratio: float  # of the whole


@dataclass(frozen=True, slots=True)
class BucketSummary:
    """One bucket: means over all typical steps, also those in which it was not sent, so that the buckets' parts add up
    to the step's. A bucket that is sent several times in a step counts with their sum. None where no step knows it."""

    reducer: int  # as in `buckets`
    layout: int  # as in `buckets`
    index: int  # as in `buckets`
    nbytes: int | None  # of its gradients
    parameters: tuple[str, ...]  # names of its parameters
    steps: int  # (rank, step) pairs that it was sent in
    is_last: bool  # of its layout: launched when backward has nothing left to compute
    comm_ns: int | None  # the communication ran
    hidden_ns: int | None  # part of comm in which the rank computed
    exposed_charged_ns: int | None  # its share of the step's exposed communication
    wait_ns: int | None  # the host was blocked on it
    queue_ns: int | None  # from launch to begin of the execution
    step_ratio: float | None  # exposed_charged / window of the typical step
    evidence: Evidence | None  # the weakest of its collectives


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Typical step of one rank: means over its typical steps."""

    rank: int  # global rank
    steps: int  # its typical steps
    wall_ns: int  # time of the host
    compute_ns: int | None  # it computed; None, as the next three, where not all of its steps know it
    exposed_comm_ns: int | None  # communication that nothing hides
    idle_ns: int | None  # neither
    overlap_ratio: float | None  # hidden / comm
    rpc_wait_ns: int | None = None  # part of idle: blocked on remote calls
    phases: tuple[Share, ...] = ()  # as in the summary
    window_ns: int = 0  # what its parts add up to: the device's time where that is known, else the host's


@dataclass(frozen=True, slots=True)
class AllSteps:
    """Lengths of all steps on all ranks, the untypical too, but the first, which warms up."""

    steps: int  # how many
    wall_median_ns: int  # median
    wall_p95_ns: int  # 95th percentile


@dataclass(frozen=True, slots=True)
class StepLength:
    """The typical step's length: means over its (rank, step) pairs."""

    steps: int  # how many pairs
    population: str  # which they are, in words
    wall_ns: int  # time of the host
    window_ns: int  # time of the device where that is known, else of the host


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """A mean profiler window."""

    windows: int  # that it is the mean of
    ranks: int  # that these are of
    on_device: bool  # all of them are of devices
    window_ns: int  # what the parts add up to
    comm_ns: int  # any collective ran
    hidden_ns: int  # part of comm in which the rank computed
    queued_ns: int  # part of idle in which work was queued
    overlap_ratio: float | None  # all hidden / all comm; None without communication
    evidence: Evidence | None  # the weakest of its collectives
    parts: tuple[Share, ...]  # compute, exposed_comm, exposed_memory, idle: a partition of the window

    def part(self, name: str) -> Share:
        """Return the part of this name."""
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The typical step, and how it divides, by the steps that show it. Times are means over the (rank, step) pairs of
    these, None where there are none, or not all of them know it."""

    typical: StepLength | None  # its length; None where there is no step
    steps: int  # (rank, step) pairs that show how it divides
    population: str  # which they are, in words
    profiled: bool  # all of them are profiled
    wall_ns: int | None  # time of the host
    window_ns: int | None  # what the parts add up to
    comm_ns: int | None  # any collective ran
    hidden_ns: int | None  # part of comm in which the rank computed
    wait_ns: int | None  # the host was blocked on collectives, over the steps where it is known
    overlap_ratio: float | None  # all hidden / all comm; None without communication
    evidence: Evidence | None  # the weakest of its steps
    parts: tuple[Share, ...]  # compute, exposed_comm, exposed_memory, idle: a partition of the window; () if unknown
    phases: tuple[Share, ...]  # data, forward, backward, optimizer, other: a partition of the wall time
    buckets: Table[BucketSummary]  # most exposed first
    worst: BucketSummary | None  # the most exposed bucket; None where no bucket was exposed
    ranks: Table[RankSummary]  # typical step of each rank
    host_idle_ns: int | None = None  # part of the window: the device had nothing to do and nothing queued
    rpc_wait_ns: int | None = None  # part of idle: the host was blocked on remote calls
    rpc_calls: float = 0.0  # remote calls that the program made
    all_steps: AllSteps | None = None  # lengths of all steps
    unsure_ns: int | None = None  # part of the window that events leave open to be compute or idle; None unless events
    #   alone tell when its steps computed
    window: WindowSummary | None = None  # the mean profiler window, where the run has no steps

    def __repr__(self) -> str:
        length = "no step" if self.typical is None else f"typical step {duration(self.typical.wall_ns)}"
        hidden = "" if self.overlap_ratio is None else f", {percent(self.overlap_ratio)} of communication hidden"
        return f"Summary: {length}{hidden}"

    @property
    def is_apart(self) -> bool:
        """Whether other steps than the typical ones show how it divides: those in profiler windows."""
        return self.typical is not None and self.population != self.typical.population

    @property
    def is_seen(self) -> bool:
        """Whether anything told when its steps computed, so that their parts are known; false without steps."""
        return self.comm_ns is not None

    @property
    def is_sure(self) -> bool:
        """Whether it is known of most of the step that the rank computed, or did not: events may leave that open."""
        return (self.unsure_ns or 0) < UNSURE_MAX_RATIO * (self.window_ns or 0)

    def part(self, name: str) -> Share | None:
        """Return the part of this name; None where the parts are not known."""
        return next((part for part in self.parts if part.name == name), None)

    def to_json_dict(self) -> dict[str, Any]:
        """Without the tables: the run's own JSON has their rows."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in TABLES}
        shares = {name: [asdict(share) for share in plain[name]] for name in ("parts", "phases")}
        rows = {"all_steps": self.all_steps, "typical": self.typical, "window": self.window}
        return plain | shares | {name: None if one is None else asdict(one) for name, one in rows.items()}


TABLES: Final = ("buckets", "worst", "ranks")


class Measured(Protocol):
    """What a summary is made of: a `Result`, or another that has these tables."""

    @property
    def steps(self) -> Table[StepRow]: ...
    @property
    def buckets(self) -> Table[BucketRow]: ...
    @property
    def launches(self) -> Table[LaunchRow]: ...
    @property
    def rpcs(self) -> Table[RpcRow]: ...


def summarize(result: Measured) -> Summary:
    """The typical step of a run, over all ranks together."""
    steps, population = measured_steps(result.steps)
    buckets = _buckets(result, steps)
    exposed = [bucket for bucket in buckets if bucket.exposed_charged_ns]
    return Summary(
        typical=_typical(result.steps),
        steps=len(steps),
        population=population,
        profiled=bool(steps) and all(row.profiled for row in steps),
        wall_ns=_mean(row.wall_ns for row in steps),
        window_ns=_mean(row.window_ns for row in steps),
        comm_ns=_mean(row.comm_ns for row in steps),
        hidden_ns=_mean(row.hidden_ns for row in steps),
        wait_ns=_mean(row.wait_ns for row in steps if row.wait_ns is not None),
        overlap_ratio=_overlap(steps),
        evidence=weakest(row.evidence for row in steps),
        parts=_shares(steps, PARTS, "window_ns"),
        phases=_shares(steps, PHASES, "wall_ns"),
        buckets=Table(BucketSummary, buckets),
        worst=exposed[0] if exposed else None,
        ranks=Table(RankSummary, [_rank(rank, rows) for rank, rows in sorted(_by_rank(steps).items())]),
        host_idle_ns=_host_idle(result, steps),
        rpc_wait_ns=_rpc_wait(steps),
        rpc_calls=_rpc_calls(result, steps),
        all_steps=_all_steps(result.steps),
        unsure_ns=_mean(row.unsure_ns for row in steps),
    )


def _typical(rows: Sequence[StepRow]) -> StepLength | None:
    steps, population = typical_steps(rows)
    if not steps:
        return None
    wall_ns, window_ns = mean(row.wall_ns for row in steps), mean(row.window_ns for row in steps)
    return StepLength(len(steps), population, round(wall_ns), round(window_ns))


def _all_steps(rows: Sequence[StepRow]) -> AllSteps | None:
    lengths = sorted(row.wall_ns for row in rows if row.step > 0)
    if not lengths:
        return None
    return AllSteps(len(lengths), round(median(lengths)), percentile(lengths, 95))


def typical_steps(rows: Sequence[StepRow]) -> tuple[list[StepRow], str]:
    """Choose the typical steps, and say in words which they are.

    They are the middle half by length of the steps outside profiler windows, so that an evaluation or a checkpoint now
    and then does not change the means. Step 0 (the program builds and warms up), steps that ddptrace held up and empty
    steps are left out. If fewer than `LEAST_UNPROFILED` steps were outside and more inside, the profiled ones are
    taken, without device windows that the recording cut. If nothing is left, all steps are.
    """
    steady = steady_steps(rows)
    if not steady:
        return list(rows), "all steps" if rows else "no step"
    unprofiled = _timed([row for row in steady if not row.under_profiler])
    outside, inside = ({row.step for row in steady if row.under_profiler is one} for one in (False, True))
    if len(outside) < min(LEAST_UNPROFILED, len(inside)):
        return _middle_profiled([row for row in steady if row.under_profiler])
    return _middle_of(unprofiled, f"steps except the {_left_out(steady, unprofiled)} ones")


def _timed(rows: Sequence[StepRow]) -> list[StepRow]:
    """Without those few of which nothing told when they computed, such as one in which a CUDA graph was captured."""
    seen = [row for row in rows if row.is_seen]
    return seen if 2 * len(seen) > len(rows) else list(rows)


def _left_out(steady: Sequence[StepRow], kept: Sequence[StepRow]) -> str:
    """As in "first, paused and profiled"."""
    profiled = sum(row.under_profiler for row in steady)
    names = ["first", "paused", *["profiled"] * (profiled > 0), *["untimed"] * (len(kept) + profiled < len(steady))]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def measured_steps(rows: Sequence[StepRow]) -> tuple[list[StepRow], str]:
    """Choose the steps that show how the typical step divides, and say in words which they are.

    They are the middle half of the profiled steps, where these are as long as the typical ones or alone are known to
    compute; else the typical steps.
    """
    typical, population = typical_steps(rows)
    profiled = steady_steps([row for row in rows if row.profiled])
    if not profiled or (all(row.is_seen for row in typical) and not _are_alike(uncut_steps(profiled), typical)):
        return typical, population
    return _middle_profiled(profiled)


def _middle_profiled(rows: Sequence[StepRow]) -> tuple[list[StepRow], str]:
    whole = uncut_steps(rows)
    return _middle_of(
        whole, "profiled steps" if len(whole) == len(rows) else "profiled steps that the file shows whole"
    )


def _are_alike(some: Sequence[StepRow], others: Sequence[StepRow]) -> bool:
    """Whether their median lengths differ by little."""
    length, other = (median(lengths) for lengths in lengths_of(some, others))
    return abs(length - other) <= UNLIKE_MIN_RATIO * other


def lengths_of(some: Sequence[StepRow], others: Sequence[StepRow]) -> tuple[list[int], list[int]]:
    """Return the lengths of two kinds of steps by the same clock: that of the device where it is known of all, since a
    host that runs ahead of its device has shorter steps; else that of the host."""
    on_device = all(map(_is_by_device, (*some, *others)))
    first, second = ([row.window_ns if on_device else row.wall_ns for row in rows] for rows in (some, others))
    return first, second


def _is_by_device(row: StepRow) -> bool:
    return row.unsure_ns is not None or (row.profiled and row.window_ns != row.wall_ns)


def _middle_of(rows: Sequence[StepRow], what: str) -> tuple[list[StepRow], str]:
    kept = _middle_half(rows)
    if len(kept) == len(rows):
        return kept, f"all {what}"
    which = sorted({row.step for row in kept})
    if len(which) <= FEW_STEPS:
        return kept, f"{named('step', which)}, the middle of the {what}"
    return kept, f"the middle half of the {what}"


def steady_steps(rows: Sequence[StepRow]) -> list[StepRow]:
    """Without step 0, those that ddptrace itself held up, and empty ones."""
    return [row for row in rows if row.step > 0 and row.window_ns and row.paused_ns <= PAUSED_MAX_RATIO * row.wall_ns]


def uncut_steps(rows: Sequence[StepRow], least_ratio: float = CUT_MAX_RATIO) -> list[StepRow]:
    """Leave out a profiler window's first step where the recording shows only the end of its device time: the device
    works far behind the host, and kernels whose launch is not in the file belong to no step; or it was idle for long
    before that step, since when is not in the file. `least_ratio`: of the following steps' windows, that a whole one
    has at least."""
    cut = {
        (rank, row.step)
        for rank, mine in _by_rank(rows).items()
        for row, others in _firsts(mine)
        if len(others) >= MIN_OTHERS
        and row.window_ns < least_ratio * median(other.window_ns for other in others)
        and row.wall_ns > least_ratio * median(other.wall_ns for other in others)
    }
    steps = {step for _, step in cut}
    return [row for row in rows if row.step not in steps]


def _firsts(rows: Sequence[StepRow]) -> Iterator[tuple[StepRow, list[StepRow]]]:
    """The first of consecutive steps of one rank, each with those that follow it. A window on the host is never cut."""
    rows = sorted(rows, key=lambda row: row.step)
    for place, row in enumerate(rows):
        if (place == 0 or rows[place - 1].step + 1 < row.step) and row.window_ns != row.wall_ns:
            after = rows[place + 1 :]
            yield row, [other for near, other in enumerate(after, start=1) if other.step == row.step + near]


def _middle_half(rows: Sequence[StepRow]) -> list[StepRow]:
    """Without the longest and the shortest quarter: the same steps of all ranks, since these wait for each other. Ranks
    that have no step in common are judged each by its own."""
    by_rank = _by_rank(rows)
    common = set.intersection(*({row.step for row in mine} for mine in by_rank.values()))
    if not common:
        return [row for mine in by_rank.values() for row in _without_quarters(mine)]
    return _without_quarters([row for row in rows if row.step in common])


def _without_quarters(rows: Sequence[StepRow]) -> list[StepRow]:
    """By rank, then step. A step is as long as all ranks together took for it, on the device where that is known."""
    lengths: dict[int, int] = defaultdict(int)
    for row in rows:
        lengths[row.step] += row.window_ns
    order = sorted(lengths, key=lambda step: (lengths[step], step))
    middle = set(order[len(order) // 4 : len(order) - len(order) // 4])
    return sorted((row for row in rows if row.step in middle), key=lambda row: (row.rank, row.step))


def _by_rank(rows: Sequence[StepRow]) -> dict[int, list[StepRow]]:
    found: dict[int, list[StepRow]] = defaultdict(list)
    for row in rows:
        found[row.rank].append(row)
    return found


def _shares(steps: Sequence[StepRow], names: Iterable[str], whole: str) -> tuple[Share, ...]:
    all_ns = sum(getattr(row, whole) for row in steps)
    columns = {name: [getattr(row, f"{name}_ns") for row in steps] for name in names}
    if not all_ns or any(None in column for column in columns.values()):
        return ()
    sums = {name: sum(column) for name, column in columns.items()}
    return tuple(Share(name, round(ns / len(steps)), ns / all_ns) for name, ns in sums.items())


def _overlap(steps: Sequence[StepRow]) -> float | None:
    known = [(row.hidden_ns, row.comm_ns) for row in steps if row.hidden_ns is not None and row.comm_ns is not None]
    comm = sum(comm_ns for _, comm_ns in known) if len(known) == len(steps) else 0
    return sum(hidden_ns for hidden_ns, _ in known) / comm if comm else None


def _host_idle(result: Measured, steps: Sequence[StepRow]) -> int | None:
    wanted = {(row.rank, row.step) for row in steps}
    return _mean(row.host_idle_ns for row in result.launches if (row.rank, row.step) in wanted)


def _rpc_wait(steps: Sequence[StepRow]) -> int | None:
    return _mean(row.rpc_wait_ns for row in steps if row.rpc_wait_ns is not None)


def _rpc_calls(result: Measured, steps: Sequence[StepRow]) -> float:
    made = len(calls_in(result.rpcs, ((row.rank, row.step) for row in steps)))
    return made / len(steps) if steps else 0.0


def _rank(rank: int, rows: Sequence[StepRow]) -> RankSummary:
    return RankSummary(
        rank,
        len(rows),
        wall_ns=round(mean(row.wall_ns for row in rows)),
        compute_ns=_mean(row.compute_ns for row in rows),
        exposed_comm_ns=_mean(row.exposed_comm_ns for row in rows),
        idle_ns=_mean(row.idle_ns for row in rows),
        overlap_ratio=_overlap(rows),
        rpc_wait_ns=_rpc_wait(rows),
        phases=_shares(rows, PHASES, "wall_ns"),
        window_ns=round(mean(row.window_ns for row in rows)),
    )


def _buckets(result: Measured, steps: Sequence[StepRow]) -> list[BucketSummary]:
    """Most exposed first."""
    wanted = {(row.rank, row.step) for row in steps}
    by_key: dict[BucketKey, list[BucketRow]] = defaultdict(list)
    for row in result.buckets:
        if row.step is not None and (row.rank, row.step) in wanted:
            by_key[row.reducer, row.layout, row.index].append(row)
    last: dict[tuple[int, int], int] = {}
    for reducer, layout, index in by_key:
        last[reducer, layout] = max(index, last.get((reducer, layout), 0))
    all_ns = sum(row.window_ns for row in steps)
    buckets = [_bucket(key, rows, key[2] == last[key[:2]], len(steps), all_ns) for key, rows in by_key.items()]
    return sorted(buckets, key=lambda one: (-(one.exposed_charged_ns or 0), one.reducer, one.layout, one.index))


def _bucket(key: BucketKey, rows: Sequence[BucketRow], is_last: bool, steps: int, all_ns: int) -> BucketSummary:
    """`steps` typical steps, whose windows took `all_ns` together."""
    names = ("comm_ns", "hidden_ns", "exposed_charged_ns", "wait_ns", "queue_ns")
    comm, hidden, charged, wait, queue = (_per_step(rows, name, steps) for name in names)
    return BucketSummary(
        *key,
        rows[0].nbytes,
        rows[0].parameters,
        len({(row.rank, row.step) for row in rows}),
        is_last,
        comm,
        hidden,
        charged,
        wait,
        queue,
        charged * steps / all_ns if charged is not None and all_ns else None,
        weakest(row.evidence for row in rows),
    )


def _per_step(rows: Sequence[BucketRow], name: str, steps: int) -> int | None:
    """Mean over all typical steps; rows that do not know it count as nothing, unless none does."""
    known = [value for value in (getattr(row, name) for row in rows) if value is not None]
    return round(sum(known) / steps) if known else None


def _mean(values: Iterable[int | None]) -> int | None:
    """None where one of them is."""
    every = list(values)
    known = [value for value in every if value is not None]
    return round(mean(known)) if known and len(known) == len(every) else None
