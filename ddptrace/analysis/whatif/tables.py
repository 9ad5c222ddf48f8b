"""What is asked of a recorded run, and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ddptrace.analysis.tables import Table
from ddptrace.errors import DdptraceError

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
        caps, counts = self.caps_mb, (self.ranks, self.accumulate, self.groups)
        is_wrong = caps is not None and (not caps or min(caps) <= 0)
        if is_wrong or self.bandwidth <= 0 or self.latency < 0 or any(one is not None and one < 1 for one in counts):
            raise DdptraceError(
                f"{self} is no setting: give caps and bandwidth above 0, a latency of 0 or more, counts of 1 or more"
            )


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
class Cost:
    """An all-reduce of the recorded group: latency + bytes / rate, with the least and the most that fit as well."""

    latency_ns: int
    latency_low_ns: int
    latency_high_ns: int
    bytes_per_s: float
    least_nbytes: int
    most_nbytes: int
    sends: int
    error_ratio: float


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
