"""Forecasts the typical step of a device under a setting, by playing its profiled steps again with other lengths.

Its interval holds what the replay misses of the recorded steps, how far the mean of so few steps may be off, and a
share of the change itself: nobody has compared forecasts of devices with runs that were made with the setting.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import hypot
from statistics import fmean, median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.collectives.transfers import FEW_NBYTES, transfers
from ddptrace.analysis.intervals import Ints, clip, subtract, total, union
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import StepLength, lengths_of, measured_steps, steady_steps, summarize, uncut_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.steps import SavingRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.timeline.build import StepEnd, Timeline, timeline_of
from ddptrace.analysis.timeline.graph import Floats, Span
from ddptrace.analysis.timeline.rank_window import NONE
from ddptrace.analysis.whatif.predict import uncertainty
from ddptrace.analysis.whatif.tables import NO_UNITS, Prediction, Setting, WhatIf
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import Intervals, Work
from ddptrace.schema import Origin
from ddptrace.units import duration, percent

RECORDED: Final = Setting()
RANK: Final = re.compile(r"rank (\d+)")
"""Place of a saving."""
CHANGE_RATIO: Final = 0.25
"""Share of a change by which it may be off."""
MODEL_RATIO: Final = 0.02
"""Share of the step by which a prediction may be off where the change is small."""
WHOLE_MIN_RATIO: Final = 0.9
"""Of the following steps: a profiler window's first step that is shorter on the device alone lacks what a change would
change."""
UNEXPLAINED_RATIO: Final = 0.05
"""Share of the step; where more delays are not explained, the answer says so."""
NO_WINDOW: Final = (
    "no profiler window of a GPU holds a whole step: record some steps with --profile, or with the schedule of"
    " torch.profiler and its step()"
)
UNTESTED: Final = (
    "Forecasts for GPUs have not been compared with runs that were made with the setting: the intervals hold a quarter"
    " of each change."
)


def _populations(result: Result) -> tuple[list[StepRow], list[StepRow]]:
    """The steps that `summarize` measures, and all that could be among them: what one step wins the next may lose, so
    that changes show over all of them."""
    return measured_steps(result.steps)[0], uncut_steps(steady_steps(result.steps), WHOLE_MIN_RATIO)


def late_rank(row: SavingRow) -> int | None:
    """The rank that a saving names; None where it names none."""
    found = RANK.fullmatch(row.where)
    return None if found is None else int(found[1])


class TimelinePredictor:
    """Answers questions about one run whose profiler windows show a device.

    Args:
        result: Of the whole run.
        no_units: Why it predicts no units of FSDP.

    Raises:
        DdptraceError: No whole step is in a profiler window of a device.
    """

    def __init__(self, result: Result, no_units: str = NO_UNITS) -> None:
        self.result = result
        self._no_units = no_units
        self.timeline = timeline_of(result)
        measured, steady = ({(row.rank, row.step) for row in rows} for rows in _populations(result))
        of = {(step.row.rank, step.row.step): step for step in self.timeline.steps}
        self.measured = [step for key, step in of.items() if key in measured]
        self.steps = [step for key, step in of.items() if key in steady] or self.measured
        self._summary = summarize(result)
        typical = self._summary.typical
        if not self.measured or typical is None or not self._recorded_windows.all():
            raise DdptraceError(_why_not(result) if self.timeline.steps else NO_WINDOW)
        self._typical: StepLength = typical
        self._replay = self._played(RECORDED, self._starts[0])

    @property
    def recorded_ns(self) -> float:
        """The typical step of the run, on the device."""
        return self._typical.window_ns

    @property
    def recorded_exposed_ns(self) -> int:
        """Exposed communication of the typical step."""
        part = self._summary.part("exposed_comm")
        return 0 if part is None else part.ns

    @property
    def replay_error(self) -> float:
        """How much longer the steps take when played again as they were, as a share of them."""
        return float(self._windows(self._replay).mean() / self._recorded_windows.mean() - 1)

    def predict(self, name: str, setting: Setting) -> Prediction:
        """Answer one question. One that cannot be answered is no error but an answer with a refusal."""
        refusal = self._no_units if setting.of_units else _refusal_of(self.timeline, setting)
        if refusal is not None:
            return Prediction(name, setting, *(None,) * 10, refusal=refusal)
        cases = [self._played(setting, start) for start in self._starts]
        told = np.array([step.row.rank != setting.even for step in self.steps])
        replayed = self._windows(self._replay)[told]
        kept = [self._bounded(setting, self._windows(at))[told] for at in cases]
        whole = float(self._windows(self._replay, self.measured).mean())
        changes = [(replayed - windows) / whole for windows in kept]
        shares = [max(1 - float(change.mean()), 0.0) for change in changes]
        off = [
            hypot(self.replay_error, MODEL_RATIO, CHANGE_RATIO * (1 - share), _chance(change))
            for share, change in zip(shares, changes, strict=True)
        ]
        low = max(min(share - one for share, one in zip(shares, off, strict=True)) - self._eased(setting), 0.0)
        high = max(share + one for share, one in zip(shares, off, strict=True))
        exposed, comm = self._hidden(kept[0], cases[0]) if setting.perfect_overlap else self._exposed(cases[0])
        return Prediction(
            name,
            setting,
            step_ns=round(self.recorded_ns * shares[0]),
            low_ns=round(self.recorded_ns * low),
            high_ns=round(self.recorded_ns * high),
            per_backward_ns=None,
            gain_ratio=1 - shares[0],
            gain_low_ratio=1 - high,
            gain_high_ratio=1 - low,
            exposed_ns=exposed,
            comm_ns=comm,
            buckets=None,
            basis=tuple(self._basis(setting)),
        )

    def answer(self, settings: Mapping[str, Setting]) -> WhatIf:
        """Answer several questions, each by its name."""
        replayed = self.predict("as recorded", RECORDED)
        return WhatIf(
            len(self.result.ranks),
            len({step.row.step for step in self.steps}),
            round(self.recorded_ns),
            self.recorded_exposed_ns,
            None,
            replayed,
            self.replay_error,
            None,
            None,
            Table(Prediction, [self.predict(name, setting) for name, setting in settings.items()]),
            "timeline",
        )

    def usual(self) -> dict[str, Setting]:
        """Return what is asked where the reader asked nothing."""
        late = dict.fromkeys(rank for row in self.result.savings if (rank := late_rank(row)) is not None)
        return {
            "host twice as fast": Setting(host=2.0),
            "free data loading": Setting(free_data=True),
            **{f"rank {rank} as fast as the others": Setting(even=rank) for rank in late},
            "gradients in 16 bits": Setting(bf16=True),
            "twice the bandwidth": Setting(bandwidth=2.0),
            "half the latency": Setting(latency=0.5),
            "perfect overlap": Setting(perfect_overlap=True),
            "free network": Setting(free_network=True),
        }

    def _played(self, setting: Setting, start_ns: Floats) -> Ints:
        if setting.perfect_overlap:
            setting = Setting(free_network=True)
        graph = self.timeline.graph
        return graph.played(_lengths(self.timeline, setting, start_ns))

    def _bounded(self, setting: Setting, windows: Floats) -> Floats:
        """However well communication is hidden, a step takes no less than all of it, one after another."""
        if not setting.perfect_overlap:
            return windows
        return np.minimum(np.maximum(windows, self._sent_ns), self._windows(self._replay))

    def _windows(self, at: Ints, steps: Sequence[StepEnd] | None = None) -> Floats:
        """By step and rank: its time on the device. `steps`: all steady ones where none are given."""
        chosen = self.steps if steps is None else steps
        return np.array([at[step.instant] - at[step.before] for step in chosen], np.float64)

    @cached_property
    def _recorded_windows(self) -> Floats:
        return self._windows(self.timeline.graph.at_ns)

    @cached_property
    def _sent_ns(self) -> Floats:
        """By step and rank: the transfers that began in it, together."""
        graph, sends = self.timeline.graph, _sends(self.timeline)
        moved = np.zeros(len(graph.at_ns))
        moved[graph.source[sends]] = graph.ns[sends]
        return np.array([self._in_step(step, moved) for step in self.steps])

    def _in_step(self, step: StepEnd, moved: Floats) -> float:
        at, works = self.timeline.graph.at_ns, self.timeline.works
        mine = works[works[:, 3] == step.row.rank, 0]
        inside = (at[mine] >= at[step.before]) & (at[mine] < at[step.instant])
        return float(moved[mine[inside]].sum())

    @cached_property
    def _starts(self) -> tuple[Floats, Floats, Floats]:
        """By collective, what of its transfer no bandwidth shortens: the likeliest, the least and the most there can
        be. All of a small one is, where no line through several sizes tells."""
        fitted = {(one.op, one.group): one.line.start_ns for one in transfers(self.result) if one.line is not None}
        calls = self.timeline.calls
        shortest: dict[str, float] = defaultdict(lambda: FOREVER)
        for row in calls:
            shortest[row.op] = min(shortest[row.op], (row.exec_end_at_ns or 0) - (row.exec_start_at_ns or 0))
        least = np.array([fitted.get((row.op, row.group), 0.0) for row in calls])
        small = [row.nbytes is not None and row.nbytes <= FEW_NBYTES for row in calls]
        untold = [(row.op, row.group) not in fitted for row in calls]
        likely = np.where(np.logical_and(small, untold), FOREVER, least)
        most = np.array([max(shortest[row.op], start) for row, start in zip(calls, likely.tolist(), strict=True)])
        return likely, least, most

    def _eased(self, setting: Setting) -> float:
        """What kernels may win at most where nothing is sent beside them, as a share of the step."""
        profiled = sum(row.window_ns for row in self.result.steps if row.profiled)
        return self._tax_ns / profiled if changes_network(setting) and profiled else 0.0

    @property
    def _tax_ns(self) -> int:
        return sum(max(row.tax_ns, 0) for row in self.result.contention)

    def _exposed(self, at: Ints) -> tuple[int, int]:
        """Exposed communication and all communication of the measured steps, on the device."""
        found = [self._comm_in(step, at) for step in self.measured]
        exposed, comm = (fmean(part[column] for part in found) for column in (0, 1))
        return round(exposed), round(comm)

    def _hidden(self, windows: Floats, without: Ints) -> tuple[int, int]:
        """The same where all is hidden that can be. `without`: played without communication."""
        exposed = np.maximum(windows - self._windows(without), 0.0)
        return round(float(exposed.mean())), round(float(self._sent_ns.mean()))

    def _comm_in(self, step: StepEnd, at: Ints) -> tuple[int, int]:
        compute, comm = self._busy(step.row.rank, at)
        inside = clip(comm, int(at[step.before]), int(at[step.instant]))
        return total(subtract(inside, compute)), total(inside)

    def _busy(self, rank: int, at: Ints) -> tuple[Intervals, Intervals]:
        works = self.timeline.works[self.timeline.works[:, 3] == rank]
        spans = [works[works[:, 2] == kind, :2] for kind in (Work.COMPUTE, Work.COMM)]
        compute, comm = (union(at[one]) for one in spans)
        return compute, comm

    def _basis(self, setting: Setting) -> Iterator[str]:
        if setting != RECORDED:
            yield UNTESTED
        if self.timeline.lacks_work and setting != RECORDED:
            yield (
                "The files show launches of CUDA graphs, and such files lack some kernels of these: work that began"
                " late is taken to begin as late."
            )
        unexplained = self.timeline.unexplained_ns / max(sum(step.row.window_ns for step in self.timeline.steps), 1)
        if setting != RECORDED and unexplained >= UNEXPLAINED_RATIO:
            yield (
                f"For {percent(unexplained)} of the time some work waits for reasons that the files do not show (other"
                " work on the device, or events that a file lacks): predictions leave this waiting out."
            )
        ranks, world = len(self.result.ranks), self.result.world_size
        if changes_network(setting) and world is not None and ranks < world:
            yield (
                f"Files of {ranks} of {world} ranks are here: how long a collective waited for the other ranks is not"
                " known, and counts as its transfer."
            )
        if changes_network(setting) and _sends_unrecorded(self.timeline).any():
            yield "Kernels of no recorded call count as transfer, also while they waited for other ranks."
        if changes_network(setting):
            yield self._contention()
        if setting.is_half:
            yield "The cost of casting gradients is not in the prediction."
        if setting.perfect_overlap:
            yield "Perfect overlap: a step takes no less than all its communication, one collective after another."
        if setting.even is not None:
            yield f"Rank {setting.even} comes to each collective no later than the others; their steps are predicted."
        if setting.host != 1 or setting.free_data:
            yield "If the host is faster, kernels may come to wait for others that were never late in the recording."

    def _contention(self) -> str:
        if not self._tax_ns:
            return "Kernels are taken as they were: nothing shows whether communication beside them slows them."
        share = self._tax_ns / sum(row.window_ns for row in self.result.steps if row.profiled)
        return (
            f"Communication slowed kernels beside it by {duration(self._tax_ns)} in all profiled steps"
            f" ({percent(share)} of them): intervals hold that less of it may do so."
        )


def _why_not(result: Result) -> str:
    """Why none of the profiled steps can be played again for the typical one."""
    steady = steady_steps(result.steps)
    under, others = lengths_of(*([row for row in steady if row.profiled is one] for one in (True, False)))
    if not under or not others:
        return NO_WINDOW
    return (
        f"profiled steps took {duration(median(under))} and the others {duration(median(others))}, so they do not show"
        " how the typical step divides: record windows without stacks and shapes, when nothing else runs there"
    )


def _chance(changes: Floats) -> float:
    """By how much of the step its change may be off since the steps are few. `changes`: of each step."""
    return uncertainty(changes) if len(changes) > 1 else 0.0


# What a setting makes of each arrow of the graph ----------------------------------------------------------------------


HALF: Final = 0.5
FOREVER: Final = 2.0**61
NEVER: Final = -FOREVER
"""Along an arrow that makes nothing wait."""
GRADIENTS: Final = (Origin.GRADIENTS.word, Origin.HOOK.word, Origin.FSDP.word, Origin.ZERO.word)
REDUCES: Final = ("all_reduce", "reduce_scatter")


def _lengths(timeline: Timeline, setting: Setting, start_ns: Floats) -> Floats:
    """Return how long each arrow takes. `start_ns`: by collective, what of its transfer no bandwidth shortens."""
    graph = timeline.graph
    ns = graph.ns.copy()
    ns[graph.span == Span.HOST] /= setting.host
    if setting.free_data:
        ns[graph.span == Span.DATA] = 0.0
    if setting.even is not None:
        ns[(graph.span == Span.ARRIVAL) & (graph.rank == setting.even)] = NEVER
    sends = graph.span == Span.TRANSFER
    if setting.free_network:
        ns[sends] = 0.0
    elif sends.any():
        ns[sends] = _transfer_ns(timeline, setting, start_ns)[sends]
    return ns


def _sends(timeline: Timeline) -> NDArray[np.bool_]:
    """By arrow, whether it is a kernel that communicates."""
    sends: NDArray[np.bool_] = timeline.graph.span == Span.TRANSFER
    return sends & np.isin(timeline.graph.source, timeline.works[:, 0])


def _sends_unrecorded(timeline: Timeline) -> NDArray[np.bool_]:
    """By arrow, whether it is such a kernel of no recorded call."""
    is_unknown: NDArray[np.bool_] = timeline.graph.call == NONE
    return _sends(timeline) & is_unknown


def _transfer_ns(timeline: Timeline, setting: Setting, start_ns: Floats) -> Floats:
    """What each transfer takes over the link of the setting."""
    graph = timeline.graph
    start = np.minimum(np.append(start_ns, 0.0)[graph.call], graph.ns)
    halves = np.array([setting.is_half and is_whole_gradient(row) for row in timeline.calls] + [False])
    bytes_ratio = np.where(halves, HALF, 1.0)[graph.call] / setting.bandwidth
    sent: Floats = start * setting.latency + (graph.ns - start) * bytes_ratio
    return sent


def is_whole_gradient(row: CollectiveRow) -> bool:
    """Whether a collective reduces gradients of 32 bits."""
    carries = row.bucket is not None or row.origin in GRADIENTS
    return carries and row.dtype == "float32" and row.op.startswith(REDUCES)


# When there is no answer ----------------------------------------------------------------------------------------------


UNRECORDED: Final = "no collective of the profiled steps was recorded, so nothing shows how long each waited for ranks"


def _refusal_of(timeline: Timeline, setting: Setting) -> str | None:
    """Say why nothing can be said; None where something can."""
    return next(_refusals(timeline, setting), None)


def _refusals(timeline: Timeline, setting: Setting) -> Iterator[str]:
    planned = (setting.caps, setting.ranks, setting.accumulate)
    if any(one is not None for one in planned) or setting.order != "ready" or setting.groups != 1:
        yield "other buckets and ranks are not planned on a GPU: nothing shows what collectives of other sizes take"
    if setting.of_pipeline:
        yield "schedules of pipelines are predicted of runs without profiler windows of a GPU only"
    if changes_network(setting) and not (_sends(timeline) & ~_sends_unrecorded(timeline)).any():
        yield UNRECORDED if _sends_unrecorded(timeline).any() else "no collective ran in the profiled steps"
    if setting.is_half and not any(map(is_whole_gradient, timeline.calls)):
        yield "no collective is known to reduce gradients of 32 bits"
    if setting.free_data and not (timeline.graph.span == Span.DATA).any():
        yield "no fetching of a batch shows in the profiled steps"
    ranks: list[int] = np.unique(timeline.graph.rank).tolist()
    if setting.even is not None and setting.even not in ranks:
        yield f"there is no rank {setting.even} in the run"
    elif setting.even is not None and len(ranks) < 2:
        yield "there is no other rank"
    elif setting.even is not None and not timeline.meetings:
        yield "no collectives are matched across ranks, so nothing shows who waits for it"


def changes_network(setting: Setting) -> bool:
    """Whether a setting changes what communication takes."""
    speeds = setting.bandwidth != 1 or setting.latency != 1
    return speeds or setting.is_half or setting.free_network or setting.perfect_overlap
