"""What is asked of a recorded run, and what it answers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError
from ddptrace.units import counted, duration

MOST_TIMES: Final = 1e6
NEARLY: Final = 1e-3
Order = Literal["ready", "definition"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]
ReduceDtype = Literal["float32", "bfloat16", "float16"]
Model = Literal["buckets", "timeline", "pipeline", "units"]


OF_UNITS: Final = (
    "forward_prefetch",
    "backward_prefetch",
    "unshard_async_op",
    "reshard_after_forward",
    "unit_size",
    "separate_reduce_scatter_group",
    "reduce_dtype",
)
"""Fields of a setting that are about units of FSDP."""
NO_UNITS: Final = "ddptrace recorded no units of FSDP in this run"


@dataclass(frozen=True, slots=True)
class Setting:
    """Describe what is to be different, with the names of the options of `ddptrace whatif`; the defaults are what was
    recorded.

    Raises:
        DdptraceError: A value is out of range.
    """

    caps: tuple[float, ...] | None = None  # MiB of the first bucket, the second, ...; the last one repeats
    order: Order = "ready"  # "ready", or "definition": buckets from the last parameter to the first, whichever is ready
    ranks: int | None = None  # number of ranks, in a ring of the same links
    bandwidth: float = 1.0  # factor of the link's bytes per second
    latency: float = 1.0  # factor of the link's latency
    fp16: bool = False  # gradients are sent in half precision
    bf16: bool = False  # gradients are sent as bfloat16
    accumulate: int | None = None  # backwards of an update, all but the last in no_sync()
    groups: int = 1  # process groups that take turns
    even: int | None = None  # a rank that would be as fast as the median of the others
    perfect_overlap: bool = False  # everything can be sent when backward begins
    free_network: bool = False  # sending takes no time
    host: float = 1.0  # factor of the host's speed at its own work; of runs with profiler windows of a device
    free_data: bool = False  # fetching a batch takes no time; of the same runs
    schedule: Schedule | None = None  # "gpipe", "1f1b" or "interleaved" with two stages on each rank; of a pipeline
    microbatches: int | None = None  # in a step, each as large as a recorded one; of a pipeline
    forward_prefetch: int | None = None  # units of FSDP gathered ahead in forward: `set_modules_to_forward_prefetch`
    backward_prefetch: int | None = None  # the same in backward: `set_modules_to_backward_prefetch`
    unshard_async_op: bool | None = None  # the host does not wait for a gather at once: `_set_unshard_async_op`
    reshard_after_forward: bool | None = None  # units let go of their gathered parameters: of `fully_shard`
    unit_size: float = 1.0  # factor: 2 puts each two units into one, 0.5 halves each
    separate_reduce_scatter_group: bool = False  # reductions have a communicator: `set_separate_reduce_scatter_group`
    reduce_dtype: ReduceDtype | None = None  # of the reductions: of `MixedPrecisionPolicy`

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("ranks", "accumulate", "groups", "microbatches")}
        wrong = {
            "caps is a tuple of MiB above 0, such as (25,)": self.caps is None or _are_caps(self.caps),
            "order is ready or definition": self.order in get_args(Order),
            "schedule is gpipe, 1f1b or interleaved": self.schedule is None or self.schedule in get_args(Schedule),
            f"bandwidth lies between {1 / MOST_TIMES:g} and {MOST_TIMES:g}": self.bandwidth >= 1 / MOST_TIMES
            and self.bandwidth <= MOST_TIMES,
            f"latency lies between 0 and {MOST_TIMES:g}": 0 <= self.latency <= MOST_TIMES,
            f"host lies between {1 / MOST_TIMES:g} and {MOST_TIMES:g}": 1 / MOST_TIMES <= self.host <= MOST_TIMES,
            "unit_size is a whole number, or 1 divided by one": _is_whole(self.unit_size)
            or (self.unit_size > 0 and _is_whole(1 / self.unit_size)),
            "forward_prefetch and backward_prefetch are 0 or more": min(
                self.forward_prefetch or 0, self.backward_prefetch or 0
            )
            >= 0,
            "reduce_dtype is float32, bfloat16 or float16": self.reduce_dtype in (None, *get_args(ReduceDtype)),
        } | {f"{name} is 1 or more": one is None or one >= 1 for name, one in counts.items()}
        for what, is_right in wrong.items():
            if not is_right:
                raise DdptraceError(f"{self!r} is no setting: {what}")

    @property
    def of_pipeline(self) -> bool:
        """Whether it asks for another schedule or number of microbatches."""
        return self.schedule is not None or self.microbatches is not None

    @property
    def of_units(self) -> bool:
        """Whether it asks for other units of FSDP, or for another way to gather and reduce them."""
        return any(getattr(self, field.name) != field.default for field in fields(self) if field.name in OF_UNITS)

    @property
    def is_half(self) -> bool:
        """Whether gradients are sent in 16 bits."""
        return self.fp16 or self.bf16

    def __repr__(self) -> str:
        """Only what is not as recorded."""
        told = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return f"Setting({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"


def _is_whole(size: float) -> bool:
    return math.isfinite(size) and size >= 1 and abs(size - round(size)) < NEARLY


def _are_caps(caps: object) -> bool:
    return isinstance(caps, tuple) and bool(caps) and all(0 < cap < math.inf for cap in caps)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer. Times are of the typical step. All are None where the run cannot tell."""

    name: str  # of the setting
    setting: Setting  # what was asked
    step_ns: int | None  # predicted step
    low_ns: int | None  # low end of the interval in which it is expected
    high_ns: int | None  # high end
    per_backward_ns: int | None  # step / backwards: what is compared where gradients are accumulated
    gain_ratio: float | None  # of the time per backward, against that of the recorded setting; negative for a loss
    gain_low_ratio: float | None  # low end of the gain's interval
    gain_high_ratio: float | None  # high end
    exposed_ns: int | None  # exposed communication; waiting for late ranks counts
    comm_ns: int | None  # communication
    buckets: int | None  # number of buckets
    basis: tuple[str, ...] = ()  # what it rests on, in sentences
    refusal: str | None = None  # why the run cannot tell; None where it can
    peak_nbytes: int | None = None  # most memory of one rank's shards, gathered units and gradients; of FSDP units


@dataclass(frozen=True, slots=True)
class SmallCost:
    """Cost of small messages, where the recording shows that they are sent in another way."""

    most_nbytes: int  # largest message of this kind
    latency_ns: int  # time of a message of no bytes
    bytes_per_s: float | None  # rate; None where their bytes take no time that shows


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an all-reduce of the recorded group: latency + bytes / rate, fitted to what was recorded."""

    latency_ns: int  # time of a message of no bytes
    latency_low_ns: int  # least that fits as well
    latency_high_ns: int  # most that fits as well
    bytes_per_s: float  # rate
    least_nbytes: int  # smallest message that was recorded
    most_nbytes: int  # largest message that was recorded
    sends: int  # messages that it rests on
    error_ratio: float  # mean distance of the played ends from the recorded ones / time sent
    small: SmallCost | None = None  # cost of small messages; None where one line fits all


@dataclass(frozen=True, slots=True)
class Contention:
    """Compute beside communication takes 1 + ratio times as long."""

    ratio: float  # how much longer
    low_ratio: float  # low end of its interval
    high_ratio: float  # high end
    is_known: bool  # it is measured, not assumed
    why: str  # what it rests on


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf:
    """Answers about one recorded run."""

    ranks: int  # ranks of the run
    steps: int  # steps that are played again
    recorded_ns: int  # the typical step, as recorded
    recorded_exposed_ns: int  # exposed communication of the typical step
    backwards: (
        int | None
    )  # backwards of a step, or microbatches of a pipeline; None of a device's profiler windows, and of FSDP
    #   units
    replayed: Prediction  # the recorded setting, predicted as all others are, from ready times and costs alone
    replay_error_ratio: float  # (replayed step - recorded step) / recorded step
    cost: Cost | None  # fitted cost of an all-reduce; None, as contention, of what is not played from buckets
    contention: Contention | None  # fitted slowdown of compute beside communication
    predictions: Table[Prediction]  # one row per setting
    model: Model = "buckets"  # what is played again: "buckets" on CPUs, "timeline" of a device, "pipeline", or
    #   "units" of FSDP

    def __repr__(self) -> str:
        return f"WhatIf: {counted(len(self.predictions), 'prediction')} for a step of {duration(self.recorded_ns)}"

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace whatif --json`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        rows = [asdict(prediction) for prediction in self.predictions]
        nested = {name: plain[name] and asdict(plain[name]) for name in ("replayed", "cost", "contention")}
        return plain | nested | {"predictions": rows}
