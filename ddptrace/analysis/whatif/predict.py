"""What a setting would make of the recorded step: an interval and what it rests on, or why nothing can be said.

The interval holds what every wire and slowdown makes of it that fits the recording as well, what the median of so few
steps can be off by, and what the model misses already of the recorded setting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import hypot
from typing import Final

import numpy as np

from ddptrace.analysis.across.jitter import SPREAD_OF_DEVIATION
from ddptrace.analysis.whatif.again import Plan, Steps, play_steps
from ddptrace.analysis.whatif.basis import basis_of, refusal_of
from ddptrace.analysis.whatif.contention import contention_of
from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.plan import Buckets, caps_nbytes, plan_buckets
from ddptrace.analysis.whatif.play import Floats
from ddptrace.analysis.whatif.tables import Contention, Prediction, Setting
from ddptrace.analysis.whatif.wire import Wire

RECORDED: Final = Setting()
MODEL_RATIO: Final = 0.02
"""Held-out predictions on two hosts were off by about so much even where all else was known (median)."""
SURE: Final = 1.96
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median, in those of a mean."""
HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Case:
    """One wire and slowdown that fit the recording, and how much of a hook's likely cost on the host is taken."""

    wire: Wire
    slowdown: float
    hosting: float = 1.0


class Predictor:
    """Answers questions about one recorded run."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.contention: Contention = contention_of(model)
        slowdowns = (self.contention.low_ratio, self.contention.high_ratio)
        others = product(model.fit.others, slowdowns, (0.0, 2.0))
        self._cases = (_Case(model.fit.wire, self.contention.ratio), *(_Case(*one) for one in others))
        self._replays = [self._play(RECORDED, case) for case in self._cases]

    @property
    def recorded_ns(self) -> float:
        """The median step, mean over ranks."""
        return float(np.median([sample.wall_ns.mean() for sample in self.model.samples]))

    @property
    def replay_error(self) -> float:
        """Of the recorded setting, predicted as any other, to the recorded step."""
        return _middle(self._replays[0]) / self.recorded_ns - 1

    def predict(self, name: str, setting: Setting) -> Prediction:
        """Never raises for a question that cannot be answered: that is an answer too."""
        refusal = refusal_of(setting, self.model)
        if refusal is not None:
            return Prediction(name, setting, *(None,) * 10, refusal=refusal)
        played = [self._play(setting, case) for case in self._cases]
        steps, middle = [_middle(one) for one in played], _middle(played[0])
        off = hypot(_uncertainty(played[0].step_ns), self.replay_error * middle, MODEL_RATIO * middle)
        backwards, buckets = setting.accumulate or self.model.backwards, buckets_of(setting, self.model)
        return Prediction(
            name, setting, round(middle), round(min(steps) - off), round(max(steps) + off), round(middle / backwards),
            *self._gains(played, backwards), round(float(np.median(played[0].exposed_ns))),
            round(float(np.median(played[0].comm_ns))), len(buckets),
            basis_of(setting, buckets, self.model, self.contention),
        )  # fmt: skip

    def without_contention(self) -> float:
        """The recorded setting, had communication slowed nothing."""
        plan = plan_of(RECORDED, self.model, self.model.fit.wire, self.contention.ratio)
        return float(np.median(play_steps(self.model, replace(plan, slowdown=0.0)).step_ns))

    def _gains(self, played: list[Steps], backwards: int) -> tuple[float, float, float]:
        """Of the time per backward: likeliest, least, most. Each case is held against the same case without the change,
        step by step, so that what is unknown of both does not count."""
        share = self.model.backwards / backwards
        gains = [1 - share * one.step_ns / old.step_ns for one, old in zip(played, self._replays, strict=True)]
        middles = [float(np.median(one)) for one in gains]
        off = hypot(_uncertainty(gains[0]), self.replay_error * middles[0])
        return middles[0], min(middles) - off, max(middles) + off

    def _play(self, setting: Setting, case: _Case) -> Steps:
        return play_steps(self.model, plan_of(setting, self.model, case.wire, case.slowdown, case.hosting))


def _middle(steps: Steps) -> float:
    return float(np.median(steps.step_ns))


def _uncertainty(values: Floats) -> float:
    """What their median, and that of as many more, may lie apart, 95 %."""
    spread = SPREAD_OF_DEVIATION * float(np.median(np.abs(values - np.median(values))))
    return float(SURE * MEDIAN_ERROR * spread * (2 / len(values)) ** HALF)


def plan_of(setting: Setting, model: Model, wire: Wire, slowdown: float, hosting: float = 1.0) -> Plan:
    """`hosting`: of a hook's cost on the host, so many times what it is taken to be."""
    wire = wire_of(setting, model, wire)
    return Plan(
        buckets_of(setting, model), wire, slowdown, slowdown,
        wire_ratio=HALF if setting.hook == "fp16" else model.wire_ratio,
        byte_ns=hosting * cast_ns(model) if setting.hook == "fp16" else 0.0,
        backwards=setting.accumulate or model.backwards,
        evened=None if setting.evened is None else model.ranks.index(setting.evened),
        is_eager=setting.perfect_overlap,
    )  # fmt: skip


def cast_ns(model: Model) -> float:
    """Host time to make fp16 of a byte of gradients and back again: as the update takes, which goes through all of them
    once or more."""
    return float(np.median([sample.after_ns.mean() for sample in model.samples])) / model.nbytes


def wire_of(setting: Setting, model: Model, wire: Wire) -> Wire:
    if setting.free_network:
        return replace(wire, latency_ns=0.0, ns_per_byte=0.0)
    if setting.ranks is not None:
        wire = wire.scaled(model.world_size, setting.ranks)
    return replace(
        wire, latency_ns=wire.latency_ns * setting.latency, ns_per_byte=wire.ns_per_byte / setting.bandwidth,
        lanes=setting.groups,
    )  # fmt: skip


def buckets_of(setting: Setting, model: Model) -> Buckets:
    if setting.caps_mb is None and setting.order == "ready":
        return model.buckets
    known = {number for bucket in model.buckets for number in bucket}
    order = model.order if setting.order == "ready" else range(len(model.parameters) - 1, -1, -1)
    caps = model.caps_nbytes if setting.caps_mb is None else caps_nbytes(setting.caps_mb)
    return plan_buckets([one for one in order if one in known], model.parameters, caps)
