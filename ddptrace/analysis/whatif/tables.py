"""What is asked of a recorded run, and what it answers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError

MOST_TIMES: Final = 1e6
Order = Literal["ready", "definition"]
Hook = Literal["fp16"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is to be otherwise; the defaults are what was recorded."""

    caps_mb: tuple[float, ...] | None = None  # MiB of the first bucket, the second, ...; the last one repeats
    order: Order = "ready"  # "definition": buckets from the last parameter to the first, whichever is ready
    ranks: int | None = None
    bandwidth: float = 1.0  # times as fast
    latency: float = 1.0  # times as long
    hook: Hook | None = None
    accumulate: int | None = None  # backwards of an update, all but the last in no_sync()
    groups: int = 1  # process groups that take turns
    evened: int | None = None  # a rank that would be as fast as the median of the others
    perfect_overlap: bool = False  # all can be sent when backward begins
    free_network: bool = False

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("ranks", "accumulate", "groups")}
        wrong = {
            "caps_mb is a tuple of MiB above 0": self.caps_mb is None or _are_caps(self.caps_mb),
            "order is ready or definition": self.order in get_args(Order),
            "hook is fp16 or None": self.hook is None or self.hook in get_args(Hook),
            f"bandwidth lies between {1 / MOST_TIMES:g} and {MOST_TIMES:g}": self.bandwidth >= 1 / MOST_TIMES
            and self.bandwidth <= MOST_TIMES,
            f"latency lies between 0 and {MOST_TIMES:g}": 0 <= self.latency <= MOST_TIMES,
        } | {f"{name} is 1 or more": one is None or one >= 1 for name, one in counts.items()}
        for what, is_right in wrong.items():
            if not is_right:
                raise DdptraceError(f"{self._changed()} is no setting: {what}")

    def _changed(self) -> str:
        """Only what is not as recorded."""
        told = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return f"Setting({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"


def _are_caps(caps: object) -> bool:
    return isinstance(caps, tuple) and bool(caps) and all(0 < cap < math.inf for cap in caps)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer. Times are of one step, the median over steps; `low_ns` to `high_ns` is where it is expected to lie.
    All are None where the run cannot tell, and then `refusal` says why."""

    name: str
    setting: Setting
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    per_backward_ns: int | None  # step / backwards: what is compared where gradients are accumulated
    gain_ratio: float | None  # of the time per backward, as the model has it without the change; less than 0 for a loss
    gain_low_ratio: float | None
    gain_high_ratio: float | None
    exposed_ns: int | None
    comm_ns: int | None
    buckets: int | None
    basis: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SmallCost:
    """The same of messages up to so many bytes; `bytes_per_s` is None where their bytes take no time to be seen."""

    most_nbytes: int
    latency_ns: int
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """An all-reduce of the recorded group: latency + bytes / rate, with the least and the most that fit as well.
    `small`: where the recording shows that small messages are sent in another way."""

    latency_ns: int
    latency_low_ns: int
    latency_high_ns: int
    bytes_per_s: float
    least_nbytes: int
    most_nbytes: int
    sends: int
    error_ratio: float
    small: SmallCost | None = None


@dataclass(frozen=True, slots=True)
class Contention:
    """Compute beside communication takes 1 + ratio times as long. `why`: what that rests on; `is_known`: anything but
    an assumption."""

    ratio: float
    low_ratio: float
    high_ratio: float
    is_known: bool
    why: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`recorded_ns`: median step as it was; `replayed`: the same setting, predicted as all others are, from ready times
    and costs alone."""

    ranks: int
    steps: int  # that are played again
    recorded_ns: int
    recorded_exposed_ns: int
    backwards: int  # of a step
    replayed: Prediction
    replay_error_ratio: float  # of the replayed step, to the recorded one
    cost: Cost
    contention: Contention
    predictions: Table[Prediction]

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace whatif --json`."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        rows = [asdict(one) for one in self.predictions]
        nested = {name: asdict(plain[name]) for name in ("replayed", "cost", "contention")}
        return plain | nested | {"predictions": rows}
