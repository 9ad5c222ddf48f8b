"""Predicts what a setting would make of the recorded step, with an interval, or says why it cannot.

The interval holds what every wire and slowdown makes of it that fits the recording as well, what the median of so few
steps can be off by, and what the model misses already of the recorded setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import hypot
from typing import Final

import numpy as np

from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import LATE
from ddptrace.analysis.steps.variation import SPREAD_OF_DEVIATION
from ddptrace.analysis.whatif.again import Scenario, Steps, play_steps, sizes
from ddptrace.analysis.whatif.model import Model, contention_of
from ddptrace.analysis.whatif.play import Buckets, Floats, caps_nbytes, plan_buckets
from ddptrace.analysis.whatif.tables import NO_UNITS, Contention, Prediction, Setting
from ddptrace.analysis.whatif.wire import Wire
from ddptrace.errors import printable
from ddptrace.findings import SLOW_LINK
from ddptrace.units import percent, size

RECORDED: Final = Setting()
MODEL_RATIO: Final = {True: 0.02, False: 0.08, None: 0.04}
"""So far held-out predictions were off where all else was known, by whether anything goes to another host: ranks of one
host take each other's processors, and what that does to their collectives is not played."""
SURE: Final = 1.96
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median, in those of a mean."""
HALF: Final = 0.5
HOSTING: Final = (0.0, 2.0)
"""What a hook may cost on the host, to what it likely does."""
SKETCHED: Final = 8
"""The last so many steps are played for a short look."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One wire and slowdown that fit the recording, and how much of a hook's likely cost on the host is taken."""

    wire: Wire
    slowdown: float
    hosting: float = 1.0


class Predictor:
    """Answers questions about one recorded run."""

    def __init__(self, model: Model, late: Sequence[Late] | None = None) -> None:
        """`late`: the ranks that the run's analysis names; None if it is not known."""
        self.model = model
        self.late = late
        self.contention: Contention = contention_of(model)
        slowdowns = (self.contention.low_ratio, self.contention.high_ratio)
        others = (_Case(*one) for one in product(model.fit.others, slowdowns))
        self._cases = tuple(dict.fromkeys((_Case(model.fit.wire, self.contention.ratio), *others)))
        self._played: dict[Scenario, Steps] = {}
        self._replays = {case: self._play(RECORDED, case) for case in self._cases}

    @property
    def recorded_ns(self) -> float:
        """The typical step of the run."""
        return self.model.typical_ns

    @property
    def replay_error(self) -> float:
        """Of the recorded setting, predicted as any other, to the steps that are played again."""
        return _middle(self._replays[self._cases[0]]) / self._sampled_ns - 1

    @property
    def _sampled_ns(self) -> float:
        """The median of the steps that are played again, mean over ranks."""
        return float(np.median([sample.wall_ns.mean() for sample in self.model.samples]))

    @property
    def to_typical(self) -> float:
        """From the steps that are played again, which are the last ones, to the typical step."""
        return self.recorded_ns / self._sampled_ns

    def predict(self, name: str, setting: Setting) -> Prediction:
        """Never raises for a question that cannot be answered: that is an answer too."""
        refusal = refusal_of(setting, self.model)
        if refusal is not None:
            return Prediction(name, setting, *(None,) * 10, refusal=refusal)
        cases = self._cases_of(setting)
        played = [self._play(setting, case) for case in cases]
        scale = self.to_typical
        steps = [scale * _middle(one) for one in played]
        middle = steps[0]
        off = hypot(scale * uncertainty(played[0].step_ns), self.replay_error * middle, self._model_ratio * middle)
        backwards, buckets = setting.accumulate or self.model.backwards, buckets_of(setting, self.model)
        low, high = max(round(min(steps) - off), 0), round(max(steps) + off)
        prediction = Prediction(
            name,
            setting,
            round(middle),
            low,
            high,
            round(middle / backwards),
            *self._gains(cases, played, backwards),
            round(scale * float(np.median(played[0].exposed_ns))),
            round(scale * float(np.median(played[0].comm_ns))),
            len(buckets),
            basis_of(setting, buckets, self.model, self.contention),
        )
        late = next((one for one in self.late or () if setting == Setting(even=one.rank)), None)
        return prediction if late is None else self._as_analyzed(prediction, late)

    def _as_analyzed(self, prediction: Prediction, late: Late) -> Prediction:
        """The same with the cost that the analysis tells of this rank: a run has one number for it."""
        if late.low_ratio is None or late.high_ratio is None:
            return prediction
        replayed = self.to_typical * _middle(self._replays[self._cases[0]])
        middle, high, low = (replayed * (1 - ratio) for ratio in (late.cost_ratio, late.low_ratio, late.high_ratio))
        off = abs(self.replay_error) * middle
        return replace(
            prediction,
            step_ns=round(middle),
            low_ns=max(round(low - off), 0),
            high_ns=round(high + off),
            per_backward_ns=round(middle / self.model.backwards),
            gain_ratio=late.cost_ratio,
            gain_low_ratio=late.low_ratio,
            gain_high_ratio=late.high_ratio,
            basis=(
                f"Rank {late.rank}: {late.steps} recorded steps, played again with its own time as the other ranks have"
                " it. `ddptrace analyze` tells the same cost.",
            ),
        )

    def without_contention(self) -> float:
        """The typical step, had communication slowed nothing."""
        plan = scenario_of(RECORDED, self.model, self.model.fit.wire, self.contention.ratio)
        return self.to_typical * _middle(play_steps(self.model, replace(plan, slowdown=0.0)))

    @property
    def _model_ratio(self) -> float:
        return MODEL_RATIO[self.model.crosses_hosts]

    def sketch(self, setting: Setting) -> tuple[float, float]:
        """Ns of a step over the likeliest wire, and over the one with most latency; of a few steps, to tell in short
        which settings deserve a prediction."""
        few = replace(self.model, samples=self.model.samples[-SKETCHED:])
        slowest = max(self.model.fit.others, key=lambda wire: wire.latency_ns)
        plans = (scenario_of(setting, few, wire, self.contention.ratio) for wire in (self.model.fit.wire, slowest))
        likely, slow = (_middle(play_steps(few, plan)) for plan in plans)
        return likely, slow

    def _cases_of(self, setting: Setting) -> tuple[_Case, ...]:
        """The likeliest one first."""
        if not setting.is_half:
            return self._cases
        return self._cases[0], *(replace(case, hosting=times) for case in self._cases for times in HOSTING)

    def _gains(self, cases: Sequence[_Case], played: Sequence[Steps], backwards: int) -> tuple[float, float, float]:
        """Of the time per backward: likeliest, least, most. Each case is held against the same case without the change,
        so that what is unknown of both does not count: median against median, as both are printed."""
        share = self.model.backwards / backwards
        replays = [self._replays[replace(case, hosting=1.0)] for case in cases]
        middles = [1 - share * _middle(steps) / _middle(old) for steps, old in zip(played, replays, strict=True)]
        by_step = 1 - share * played[0].step_ns / replays[0].step_ns
        off = hypot(uncertainty(by_step), self.replay_error, self._model_ratio)
        return middles[0], min(middles) - off, max(middles) + off

    def _play(self, setting: Setting, case: _Case) -> Steps:
        """Each scenario once: advice asks for several of them more than once."""
        plan = scenario_of(setting, self.model, case.wire, case.slowdown, case.hosting)
        if plan not in self._played:
            self._played[plan] = play_steps(self.model, plan)
        return self._played[plan]


def _middle(steps: Steps) -> float:
    return float(np.median(steps.step_ns))


def uncertainty(values: Floats) -> float:
    """What their median, and that of as many more, may lie apart, 95 %."""
    spread = SPREAD_OF_DEVIATION * float(np.median(np.abs(values - np.median(values))))
    return float(SURE * MEDIAN_ERROR * spread * (2 / len(values)) ** HALF)


def scenario_of(setting: Setting, model: Model, wire: Wire, slowdown: float, hosting: float = 1.0) -> Scenario:
    """`hosting`: of a hook's cost on the host, so many times what it is taken to be."""
    wire = wire_of(setting, model, wire)
    return Scenario(
        buckets_of(setting, model),
        wire,
        slowdown,
        slowdown,
        wire_ratio=HALF if setting.is_half else model.wire_ratio,
        byte_ns=hosting * cast_ns(model) if setting.is_half else 0.0,
        backwards=setting.accumulate or model.backwards,
        evened=None if setting.even is None else model.ranks.index(setting.even),
        is_eager=setting.perfect_overlap,
    )


def cast_ns(model: Model) -> float:
    """Host time to make fp16 of a byte of gradients and back again: as the update takes, which goes through all of them
    once or more."""
    return float(np.median([sample.after_ns.mean() for sample in model.samples])) / model.nbytes


def wire_of(setting: Setting, model: Model, wire: Wire) -> Wire:
    if setting.free_network or setting.ranks == 1:
        return wire.costing(0.0, 0.0)
    if setting.ranks is not None:
        wire = wire.scaled(model.world_size, setting.ranks)
    wire = wire.costing(setting.latency, 1 / setting.bandwidth)
    return replace(wire, lanes=min(setting.groups, len(model.parameters)))


def buckets_of(setting: Setting, model: Model) -> Buckets:
    if setting.caps is None and setting.order == "ready":
        return model.buckets
    known = {number for bucket in model.buckets for number in bucket}
    order = model.order if setting.order == "ready" else range(len(model.parameters) - 1, -1, -1)
    caps = model.caps_nbytes if setting.caps is None else caps_nbytes(setting.caps)
    return plan_buckets([one for one in order if one in known], model.parameters, caps)


# What an answer rests on, and when there is none ----------------------------------------------------------------------


NAME_MAX: Final = 60
FAR: Final = 2.0
"""So many times as large or as small as anything sent: the cost is extrapolated."""
VAGUE_RATIO: Final = 0.2
"""From such an interval of the slowdown on, an answer rests on it."""


def refusal_of(setting: Setting, model: Model) -> str | None:
    """Why nothing can be said."""
    return next(_refusals(setting, model), None)


def _refusals(setting: Setting, model: Model) -> Iterator[str]:
    if setting.host != 1 or setting.free_data:
        yield "only profiler windows of a device show what waits for the host"
    if setting.of_units:
        yield NO_UNITS
    if setting.of_pipeline:
        yield "the run holds no pipeline"
    if model.hook is not None and setting.is_half:
        hook = printable(model.hook[:NAME_MAX])
        yield f"the run already has the communication hook {hook}, and no steps without one"
    if setting.is_half and model.wire_ratio < 1:
        yield "the run already sends fewer bytes than its gradients have"
    if setting.ranks is not None and model.world_size < 2:
        yield "one rank communicates with nobody, so the run holds no cost of a collective"
    if setting.even is not None and setting.even not in model.ranks:
        yield f"there is no rank {setting.even} in the run"
    elif setting.even is not None and len(model.ranks) < 2:
        yield "there is no other rank"


def basis_of(setting: Setting, buckets: Buckets, model: Model, contention: Contention) -> tuple[str, ...]:
    """Sentences, the gravest first."""
    return tuple(_basis(setting, buckets, model, contention))


def _basis(setting: Setting, buckets: Buckets, model: Model, contention: Contention) -> Iterator[str]:
    if contention.high_ratio - contention.low_ratio >= VAGUE_RATIO:
        yield (
            f"How much communication slows compute is not known ({contention.why}): anything up to"
            f" {percent(contention.high_ratio)} is in the intervals. To measure it, record steps with no_sync(), or a"
            " run on CPUs that have nothing else to do."
        )
    if setting != Setting() and model.crosses_hosts is False:
        yield (
            "All ranks ran on one machine. If it has no CPU to spare, communication and compute slow each other, and"
            " predictions are too optimistic by up to 15 %: measure before you rely on them."
        )
    if setting != Setting() and not setting.free_network:
        yield from _extrapolated(buckets, model)
    if setting.ranks == 1:
        yield "One rank communicates with nobody: sending takes no time."
    elif setting.ranks is not None:
        yield (
            f"More ranks: a ring of {setting.ranks} over links like those of the {model.world_size} recorded ones,"
            " which nobody else uses; no rank is slower than the recorded ones."
        )
    if setting.is_half:
        yield (
            f"{'fp16' if setting.fp16 else 'bf16'}: casting all gradients is assumed to cost as much as the update, or"
            " anything from 0 to twice that."
        )
    if setting.accumulate is not None:
        yield "Accumulation: the effect of fewer updates on the training is not predicted."
    if setting.perfect_overlap:
        yield "Perfect overlap: communication that lasts longer than backward is still exposed."
    if setting.groups > 1:
        yield "Groups in turn: stock DDP does not support this; BucketedDataParallel does, with process_groups."


def _extrapolated(buckets: Buckets, model: Model) -> Iterator[str]:
    asked = sizes(model, buckets)
    least, most = model.fit.least_nbytes, model.fit.most_nbytes
    if asked.min() * FAR < least or asked.max() > FAR * most:
        yield f"The run sent {_range(least, most)} at once: what far smaller or larger buckets cost is extrapolated."


def _range(least: int, most: int) -> str:
    return " to ".join(dict.fromkeys((size(least), size(most))))


# Late ranks, as the run's analysis names them -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Late:
    """What a late rank costs, as shares of the typical step. `low_ratio`, `high_ratio`: the 95 % interval; None where
    the steps are too few for one."""

    rank: int
    cost_ratio: float
    low_ratio: float | None = None
    high_ratio: float | None = None
    steps: int = 0  # that this rests on


def late_ranks(result: Result) -> tuple[Late, ...]:
    """List the ranks that could be as fast as the others, the dearest first."""
    return tuple(_late_ranks(result))


def _late_ranks(result: Result) -> Iterator[Late]:
    suspects = {f"rank {suspect.rank}": suspect for suspect in result.suspects}
    for saving in result.savings:
        if saving.cause != LATE or saving.finding == SLOW_LINK.code:
            continue
        one = suspects.get(saving.where)
        if one is None:
            yield Late(int(saving.where.removeprefix("rank ")), saving.cost_ratio)
        else:
            low, high = (end / saving.whole_ns for end in (one.low_ns, one.high_ns))
            yield Late(one.rank, saving.cost_ratio, low, high, one.steps)
