"""What a step would take, and what memory, if its FSDP units were gathered, kept, reduced or divided otherwise.

Each recorded step is played again: hosts, or streams of devices, work as long as they did, and gathers and reductions
cost what fits the recorded ones. The change of a setting is that between its played steps and the recorded ones played
again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, isfinite, log2
from statistics import fmean, median
from typing import Final

import numpy as np

from ddptrace.analysis.collectives.transfers import line
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import UNLIKE_MIN_RATIO, StepLength, steady_steps, summarize, typical_steps
from ddptrace.analysis.tables.parallelism import UnitRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.units.plan import Plan, Ways, as_streams_go, ways_of
from ddptrace.analysis.units.play import RoleCost, Wire, play_step
from ddptrace.analysis.units.script import RankScript, StepScript, shared_steps
from ddptrace.analysis.whatif.predict import uncertainty
from ddptrace.analysis.whatif.tables import OF_UNITS, Prediction, Setting, WhatIf
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import Unit, UnitKind
from ddptrace.schema import Evidence, UnitRole
from ddptrace.units import duration

MOST_STEPS: Final = 20
MODEL_RATIO: Final = 0.03
"""Share of the step by which a prediction may be off where the replay is not."""
CHANGE_RATIO: Final = 0.1
"""Share of a change by which it may be off."""
SIZE_RATIO: Final = 0.05
"""Share of the step by which a prediction may be off for each doubling or halving of units: the cost of far larger
messages is extrapolated, and a rank that comes late to a large gather of Gloo gets its last quarter later."""
ROLES: Final = {UnitRole.UNSHARD.word: UnitRole.UNSHARD, UnitRole.REDUCE_SCATTER.word: UnitRole.REDUCE_SCATTER}
FIELDS: Final = (*OF_UNITS, "bandwidth", "latency", "free_network")
"""Of a setting: what this model answers."""


AHEAD: Final = (0, 1, 2, 3)
SAVED_NS: Final = (0.0, *(ms * 1e6 for ms in (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20)))
ROUNDS: Final = 4
"""What is saved up depends on the cost, and the cost on what is saved up."""
WORTH_RATIO: Final = 0.9
"""An idle link counts as saving up if the fitted costs then miss at most this share of what they miss otherwise."""
EVEN_RATIO: Final = 0.05
"""By which the time of a byte may differ on average where it is said to be the same."""
DIFFERENT_SIZES: Final = 1.25
"""Times the smallest size, from which on a size tells more than that."""
RAN_AHEAD_RATIO: Final = 0.9
"""A host ran ahead of its device in a step that took it at most so much of the device's."""
DEVICE: Final = (
    "Kernels are taken to last as long beside communication as they did in the profiled steps. On a GPU, forecasts were"
    " compared with four settings of one model, on two ranks that shared one GPU."
)
NEVER_AHEAD: Final = (
    "The host never ran ahead of the device: nothing shows how fast it is alone, so a step may stay as long as it is."
)
BY_CALL: Final = "Nothing shows whether gathers and reductions cost their bytes or their calls: intervals hold both."
NO_ASYNC: Final = (
    "on a device the host waits for no gather, and _set_unshard_async_op only moves copies between streams"
)
ROOT_STAYS: Final = "The root keeps its parameters after forward, as it did: fully_shard of a root does so by default."
CONTENTION: Final = (
    "Work of the host is taken to last as long beside communication as it did in the recording: nothing in it shows"
    " whether they slow each other."
)
LARGER: Final = (
    "Larger units: neighbours in the order of forward come together, the root's parameters stay apart. The cost of"
    " messages that large is extrapolated: on slow links steps with units of 4 took up to 12 % longer than predicted."
)
ONE_MACHINE: Final = (
    "All ranks ran on one machine. If it has no CPU to spare, communication and compute slow each other: measure before"
    " you rely on predictions."
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective of all ranks. `alone_ns`: what it took, less what others beside it took of the wire; `idle_ns`:
    how long nothing had been sent before."""

    step: int
    role: UnitRole
    nbytes: int
    alone_ns: float
    idle_ns: float


class UnitPredictor:
    """Answers questions about the FSDP units of one run.

    Args:
        result: Of the whole run.
        scripts: Of all ranks. Those of a device are of its profiled steps.
        timeline: Answers what is not about units or the network, of a device; None where nothing does.

    Raises:
        DdptraceError: The steps of the run cannot be played again.
    """

    def __init__(
        self, result: Result, scripts: Sequence[RankScript], timeline: TimelinePredictor | None = None
    ) -> None:
        typical = summarize(result).typical
        refusal = next((one.refusal for one in scripts if one.refusal is not None), None)
        if refusal is not None or typical is None:
            raise DdptraceError(refusal or "no step is in this run")
        self._on_device = any(one.on_device for one in scripts)
        self._timeline = timeline
        self.result = result
        self._typical: StepLength = typical
        self._ranks = scripts
        usual = {row.step for row in typical_steps(result.steps)[0]}
        shared = list(shared_steps(scripts))
        chosen = [one for one in shared if one[0].step in usual] or shared
        if not chosen:
            raise DdptraceError("no step with the same FSDP units is recorded on all ranks")
        self._steps: list[tuple[StepScript, ...]] = chosen[:: -(-len(chosen) // MOST_STEPS)]
        self._check()
        self._check_length()
        self._sent = list(sent(filter(self._tells, result.units), is_separate=scripts[0].is_separate))
        same = even(self._sent) if self._on_device else None
        self.costs, self._saved_ns = same or fitted(self._sent)
        is_told = not self._on_device or (same is not None and _sizes_differ(self._sent))
        self._by_call = None if is_told else flat(self._sent)
        self._replay = self._play(Setting(), self.costs)

    def _tells(self, row: UnitRow) -> bool:
        """Whether a row shows what a collective costs: on a device, when a profiler saw it."""
        return not self._on_device or row.evidence is Evidence.DEVICE

    def _check(self) -> None:
        """Refuse what is not gathered and reduced once for each use, as where gradients are accumulated."""
        for rank, script in zip(self._ranks, self._steps[0], strict=True):
            planned = Counter(op.role.word for op in Plan(rank, ways_of(rank, Setting())).ops(script))
            rows = [row for row in self.result.units if (row.rank, row.step) == (rank.rank, script.step)]
            recorded = Counter(row.role for row in rows if row.kind == UnitKind.FSDP.value)
            if any(planned[role] != recorded[role] for role in ROLES):
                raise DdptraceError(
                    "its FSDP units are not gathered and reduced once for each use, as where gradients are accumulated"
                    " or forward is computed again"
                )

    def _check_length(self) -> None:
        """Refuse profiled steps of a device that are no typical ones."""
        played = float(np.median(self._recorded_ns))
        if self._on_device and abs(played / self.recorded_ns - 1) > UNLIKE_MIN_RATIO:
            raise DdptraceError(
                f"its profiled steps took {duration(played)} on the device, and the typical one"
                f" {duration(self.recorded_ns)}: they do not show what FSDP units cost it"
            )

    @property
    def recorded_ns(self) -> float:
        """The typical step of the run."""
        return self._typical.window_ns

    @property
    def replay_error(self) -> float:
        """How much longer the steps take when played again as they were, as a share of them."""
        return float(np.median(self._replay.step_ns) / np.median(self._recorded_ns) - 1)

    @property
    def units(self) -> list[Unit]:
        """Units in the order of forward."""
        used = dict.fromkeys(one.unit for one in self._steps[0][0].structure)
        return [self._ranks[0].units[number] for number in used]

    @property
    def _recorded_ns(self) -> np.ndarray:
        return np.array([fmean(one.wall_ns for one in step) for step in self._steps])

    def predict(self, name: str, setting: Setting) -> Prediction:
        """Answer one question. One that cannot be answered is no error but an answer with a refusal."""
        if self._timeline is not None and not _is_answered(setting) and not setting.of_units:
            return self._timeline.predict(name, setting)
        refusal = self._refusal(setting)
        if refusal is not None:
            return Prediction(name, setting, *(None,) * 10, refusal=refusal)
        played = self._play(setting, self.costs)
        whole = float(np.median(self._replay.step_ns))
        change = (played.step_ns - self._replay.step_ns) / whole
        gain = -float(np.median(change))
        gains = (gain, *self._gains_by_call(setting))
        doublings = SIZE_RATIO * abs(log2(setting.unit_size))
        off = hypot(self.replay_error, MODEL_RATIO, CHANGE_RATIO * gain, doublings, uncertainty(change))
        step = self.recorded_ns * (1 - gain)
        low, high = (self.recorded_ns * (1 - one) for one in (max(gains) + off, min(gains) - off))
        if self._least_ns is None:
            high = max(high, self.recorded_ns)
        return Prediction(
            name,
            setting,
            step_ns=round(step),
            low_ns=round(max(low, 0)),
            high_ns=round(high),
            per_backward_ns=round(step),
            gain_ratio=gain,
            gain_low_ratio=1 - high / self.recorded_ns,
            gain_high_ratio=max(gains) + off,
            exposed_ns=round(float(np.median(played.exposed_ns)) * self._exposed_ratio),
            comm_ns=round(float(np.median(played.comm_ns))),
            buckets=None,
            basis=tuple(self._basis(setting, step)),
            peak_nbytes=max(plan.peak_nbytes() for plan in self._plans(setting)),
        )

    def _gains_by_call(self, setting: Setting) -> Iterator[float]:
        """Yield the gain if bytes cost nothing, where the recording does not tell."""
        if self._by_call is not None:
            before, after = (self._play(one, self._by_call).step_ns for one in (Setting(), setting))
            yield -float(np.median(after - before)) / float(np.median(before))

    def answer(self, settings: Mapping[str, Setting]) -> WhatIf:
        """Answer several questions, each by its name."""
        return WhatIf(
            len(self._ranks),
            len(self._steps),
            round(self.recorded_ns),
            round(self.recorded_exposed_ns),
            None,
            self.predict("as recorded", Setting()),
            self.replay_error,
            None,
            None,
            Table(Prediction, [self.predict(name, setting) for name, setting in settings.items()]),
            "units",
        )

    def usual(self) -> dict[str, Setting]:
        """Return what is asked where the reader asked nothing."""
        ahead = {f"prefetch {count}": self.prefetches(count) for count in AHEAD}
        others = {} if self._timeline is None else self._timeline.usual()
        return (
            ahead
            | {name: one for name, one in others.items() if self._is_asked(one)}
            | {
                "parameters stay after forward": Setting(reshard_after_forward=False),
                "units of 1/2": Setting(unit_size=0.5),
                "units of 2": Setting(unit_size=2.0),
                "units of 4": Setting(unit_size=4.0),
                "a separate group for reductions": Setting(separate_reduce_scatter_group=True),
                "reductions in bfloat16": Setting(reduce_dtype="bfloat16"),
                "twice the bandwidth": Setting(bandwidth=2.0),
                "free network": Setting(free_network=True),
            }
        )

    def _is_asked(self, setting: Setting) -> bool:
        """Whether a question of the timeline is worth asking: a host that runs ahead need not be faster."""
        is_of_host = setting.host != 1 and self._least_ns is not None
        return not _is_answered(setting) and not setting.is_half and not is_of_host

    @property
    def depths(self) -> Sequence[int | None]:
        """How many units ahead gathers are worth trying. None: as recorded, which on CPUs the host may wait for."""
        return (None, *AHEAD) if self._on_device else AHEAD

    def prefetches(self, count: int | None) -> Setting:
        """Return the setting with this many units gathered ahead. On CPUs the host must not wait for each gather."""
        is_async = None if self._on_device else True
        return Setting(forward_prefetch=count, backward_prefetch=count, unshard_async_op=is_async)

    @cached_property
    def recorded_exposed_ns(self) -> float:
        """Exposed communication of the typical step."""
        part = summarize(self.result).part("exposed_comm")
        return 0.0 if part is None else part.ns

    @cached_property
    def _exposed_ratio(self) -> float:
        """Exposed communication to the time that hosts wait when the steps are played again as they were."""
        waited = float(np.median(self._replay.exposed_ns))
        return self.recorded_exposed_ns / waited if waited and self.recorded_exposed_ns else 1.0

    def _plans(self, setting: Setting) -> list[Plan]:
        return [Plan(rank, ways_of(rank, setting)) for rank in self._ranks]

    def _refusal(self, setting: Setting) -> str | None:
        if self._on_device and setting.unshard_async_op is not None:
            return NO_ASYNC
        if not _is_answered(setting):
            return "of a run with FSDP units, other buckets, ranks, hosts and schedules are not predicted"
        return next((why for plan in self._plans(setting) if (why := plan.refusal()) is not None), None)

    def _basis(self, setting: Setting, step_ns: float) -> Iterator[str]:
        if self._on_device:
            yield from self._device_basis(setting, step_ns)
        else:
            yield CONTENTION
        if self._one_machine and not self._on_device and setting != Setting():
            yield ONE_MACHINE
        if setting.reshard_after_forward and any(unit.is_root and not unit.reshards for unit in self.units):
            yield ROOT_STAYS
        if setting.unit_size < 1:
            yield "Smaller units: computation is taken to divide as evenly as the parameters do."
        if setting.unit_size > 1:
            yield LARGER
        if setting.reduce_dtype is not None:
            yield "Reductions: bytes are taken to cost what they do now, and the cast nothing."
        ahead = max(setting.forward_prefetch or 0, setting.backward_prefetch or 0)
        if ahead and not self._on_device and not ways_of(self._ranks[0], setting).is_async:
            yield "The host waits for each gather at once: prefetches hide nothing without asynchronous gathers."

    def _device_basis(self, setting: Setting, step_ns: float) -> Iterator[str]:
        if setting == Setting():
            return
        yield DEVICE
        if self._by_call is not None:
            yield BY_CALL
        if self._least_ns is None:
            yield NEVER_AHEAD
        elif step_ns <= (1 + MODEL_RATIO) * self._least_ns:
            yield f"The step takes no less than the host, which took {duration(self._least_ns)} where it ran ahead."

    @cached_property
    def _least_ns(self) -> float | None:
        """What the host of the slowest rank takes for a step when it does not wait for the device; None where nothing
        shows it. On a CPU it works as the operations say."""
        if not self._on_device:
            return 0.0
        took: defaultdict[int, list[int]] = defaultdict(list)
        for row in steady_steps(self.result.steps):
            took[row.rank].append(row.wall_ns)
        least = max((min(one) for one in took.values()), default=0)
        return float(least) if 0 < least < RAN_AHEAD_RATIO * self.recorded_ns else None

    @cached_property
    def _one_machine(self) -> bool:
        return len({facts.host for facts in self.result.ranks}) == 1

    def _play(self, setting: Setting, costs: Mapping[UnitRole, RoleCost]) -> Played:
        plans = [Plan(rank, as_streams_go(ways_of(rank, setting))) for rank in self._ranks]
        began = [0.0] * len(plans)
        rows, paces = [], self._paces(costs)
        for scripts in self._steps:
            ops = [plan.ops(script) for plan, script in zip(plans, scripts, strict=True)]
            wire = self._wire(setting, plans[0].ways, costs, paces.get(scripts[0].step, 1.0))
            done = play_step(ops, wire, began)
            took = [ended - start for ended, start in zip(done.ended_ns, began, strict=True)]
            rows.append((max(fmean(took), self._least_ns or 0.0), fmean(done.waited_ns), done.comm_ns))
            began = [ended - min(done.ended_ns) for ended in done.ended_ns]
        return Played(*np.array(rows).T)

    def _wire(self, setting: Setting, ways: Ways, costs: Mapping[UnitRole, RoleCost], pace: float) -> Wire:
        """As quick as it was in its step."""
        latency = 0.0 if setting.free_network else setting.latency * pace
        byte = 0.0 if setting.free_network else pace / setting.bandwidth
        costs = {role: RoleCost(cost.latency_ns * latency, cost.ns_per_byte * byte) for role, cost in costs.items()}
        return Wire(costs, self._saved_ns * byte, ways.is_separate)

    def _paces(self, costs: Mapping[UnitRole, RoleCost]) -> dict[int, float]:
        """By step, how much longer its collectives took than these costs."""
        took: defaultdict[int, float] = defaultdict(float)
        told: defaultdict[int, float] = defaultdict(float)
        for one in self._sent:
            took[one.step] += _whole_ns(one, costs[one.role], self._saved_ns)
            told[one.step] += costs[one.role].alone_ns(one.nbytes)
        return {step: took[step] / told[step] for step in took if told[step]}


def _is_answered(setting: Setting) -> bool:
    """Whether it is about units and the network alone."""
    return setting == replace(Setting(), **{name: getattr(setting, name) for name in FIELDS})


@dataclass(frozen=True, slots=True)
class Played:
    """By step; means over ranks."""

    step_ns: np.ndarray
    exposed_ns: np.ndarray
    comm_ns: np.ndarray


def sent(rows: Iterable[UnitRow], *, is_separate: bool) -> Iterator[Sent]:
    """Yield the gathers and reductions of FSDP units that all ranks' records hold. `is_separate`: both have a process
    group of their own."""
    by_rank: defaultdict[int, defaultdict[int, list[UnitRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.kind == UnitKind.FSDP.value and row.role in ROLES and row.step is not None:
            by_rank[row.step][row.rank].append(row)
    for step, ranks in by_rank.items():
        yield from _sent_in(step, [sorted(mine, key=lambda row: row.seq) for mine in ranks.values()], is_separate)


def _sent_in(step: int, ranks: Sequence[Sequence[UnitRow]], is_separate: bool) -> Iterator[Sent]:
    together = [rows for rows in zip(*ranks, strict=False) if len({row.role for row in rows}) == 1]
    known = [rows for rows in together if all(_end(row) is not None for row in rows)]
    spans = np.array([(max(map(_begin, rows)), max(_end(row) or 0 for row in rows)) for rows in known], float)
    spans = spans.reshape(-1, 2)
    for mine in _lanes([rows[0].role for rows in known], is_separate):
        spans[mine[1:], 0] = np.maximum(spans[mine[1:], 0], np.maximum.accumulate(spans[mine, 1])[:-1])
        spans[mine, 1] = np.maximum(spans[mine, 1], spans[mine, 0])
    for rows, span in zip(known, spans, strict=True):
        before = spans[spans[:, 0] < span[0], 1]
        idle = max(span[0] - before.max(), 0.0) if len(before) else float("inf")
        yield Sent(step, ROLES[rows[0].role], rows[0].nbytes or 0, _alone_ns(span, spans), idle)


def _lanes(roles: Sequence[str], is_separate: bool) -> Iterator[list[int]]:
    """Yield the positions of the collectives of each process group, which sends one after the other."""
    if not is_separate:
        yield list(range(len(roles)))
        return
    for role in ROLES:
        yield [at for at, one in enumerate(roles) if one == role]


def _begin(row: UnitRow) -> int:
    return row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns


def _end(row: UnitRow) -> int | None:
    return row.done_at_ns if row.exec_end_at_ns is None else row.exec_end_at_ns


def _alone_ns(span: np.ndarray, spans: np.ndarray) -> float:
    """Its time, each instant divided by the number of process groups that sent then."""
    cuts = np.unique(np.clip(spans.ravel(), *span))
    middles = (cuts[1:] + cuts[:-1]) / 2
    beside = ((spans[:, :1] <= middles) & (middles < spans[:, 1:])).sum(axis=0)
    return float((np.diff(cuts) / np.maximum(beside, 1)).sum())


def fitted(sent_: Sequence[Sent]) -> tuple[dict[UnitRole, RoleCost], float]:
    """Return the cost of each role, and what an idle link saves up: nothing, where that does not explain far more."""
    tried = [(*_costs(sent_, saved), saved) for saved in SAVED_NS]
    costs, error, saved = min(tried, key=lambda one: one[1])
    return (costs, saved) if error <= WORTH_RATIO * tried[0][1] else (tried[0][0], 0.0)


def even(sent_: Sequence[Sent]) -> tuple[dict[UnitRole, RoleCost], float] | None:
    """Return costs where each byte takes as long in small collectives as in large ones; None where that is not so."""
    of = {role: _telling([one for one in sent_ if one.role is role]) for role in ROLES.values()}
    costs = {
        role: RoleCost(0.0, median(one.alone_ns / one.nbytes for one in mine) if mine else 0.0)
        for role, mine in of.items()
    }
    off = [abs(cost.alone_ns(one.nbytes) / one.alone_ns - 1) for role, cost in costs.items() for one in of[role]]
    return (costs, 0.0) if off and fmean(off) <= EVEN_RATIO else None


def flat(sent_: Sequence[Sent]) -> dict[UnitRole, RoleCost]:
    """Return costs of which none is for bytes."""
    of = {
        role: [one.alone_ns for one in _telling([one for one in sent_ if one.role is role])] for role in ROLES.values()
    }
    return {role: RoleCost(median(took) if took else 0.0, 0.0) for role, took in of.items()}


def _sizes_differ(sent_: Sequence[Sent]) -> bool:
    """Whether sizes differ by enough to tell what bytes cost."""
    sizes = [one.nbytes for one in _telling(sent_)]
    return bool(sizes) and max(sizes) >= DIFFERENT_SIZES * min(sizes)


def _costs(sent_: Sequence[Sent], saved_ns: float) -> tuple[dict[UnitRole, RoleCost], float]:
    """Return the cost of each role, and how far off these are: mean share of what a collective took."""
    of = {role: _telling([one for one in sent_ if one.role is role]) for role in ROLES.values()}
    costs = {role: RoleCost(0.0, _pace(mine)) for role, mine in of.items()}
    for _ in range(ROUNDS):
        typical = {role: _typical(mine, costs[role], saved_ns) for role, mine in of.items()}
        latency = min((line(list(one), list(one.values()))[0] for one in typical.values() if len(one) > 1), default=0.0)
        costs = {role: _through_largest(one, latency) for role, one in typical.items()}
    off = [
        abs(cost.alone_ns(one.nbytes) / _whole_ns(one, cost, saved_ns) - 1)
        for role, cost in costs.items()
        for one in of[role]
    ]
    return costs, fmean(off) if off else 0.0


def _telling(sent_: Sequence[Sent]) -> list[Sent]:
    """The first of a step waits for more than the link: it tells only where there is no other."""
    known = [one for one in sent_ if one.nbytes and one.alone_ns > 0]
    return [one for one in known if isfinite(one.idle_ns)] or known


def _pace(sent_: Sequence[Sent]) -> float:
    """Time for each byte, of the largest; ns."""
    largest = max((one.nbytes for one in sent_), default=0)
    return median(one.alone_ns / largest for one in sent_ if one.nbytes == largest) if largest else 0.0


def _typical(sent_: Sequence[Sent], cost: RoleCost, saved_ns: float) -> dict[int, float]:
    """Return the median by size."""
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for one in sent_:
        by_size[one.nbytes].append(_whole_ns(one, cost, saved_ns))
    return {nbytes: median(times) for nbytes, times in by_size.items()}


def _through_largest(typical: Mapping[int, float], latency_ns: float) -> RoleCost:
    """Return the cost with this latency that is that of the largest."""
    if not typical:
        return RoleCost(0.0, 0.0)
    largest = max(typical)
    return RoleCost(latency_ns, max(typical[largest] - latency_ns, 0.0) / largest)


def _whole_ns(one: Sent, cost: RoleCost, saved_ns: float) -> float:
    """What it would have taken had nothing been saved up before: no more can be than it has to send."""
    return one.alone_ns + min(one.idle_ns, saved_ns, cost.ns_per_byte * one.nbytes)
