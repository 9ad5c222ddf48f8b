"""The metrics, frozen: other people's dashboards, alerts and queries depend on these names.

Every point has `ddptrace.run.id` and `ddptrace.rank` besides the attributes declared here, so no query needs a join.
Sums are cumulative from the rank's start. They add up complete steps, each once, and collectives in the step that
launched them. A value that was not measured has no point. Prometheus gets the names of OpenTelemetry's translation:
`ddptrace.step.duration` in s becomes `ddptrace_step_duration_seconds`, its attribute `ddptrace.rank` the label
`ddptrace_rank`.

To add a metric, declare it here and give it its value in `rank_totals.py`. The reference page is made from this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddptrace.telemetry.common_attributes import JOB_ID, PHASE, RUN_NAME

OTHER: Final = "other"
"""The attributes' value on the common point of everything beyond a bound, so that the number of points stays
bounded."""
COLLECTIVES_MAX: Final = 64
"""Most pairs of op and group with their own point, on one rank."""
BUCKETS_MAX: Final = 256
"""Most pairs of reducer and index with their own point, on one rank."""
UNITS_MAX: Final = 256
"""Most pairs of unit and role with their own point, on one rank."""

NS_PER_S: Final = 10**9


class Kind(StrEnum):
    COUNTER = "counter"  # goes up only
    GAUGE = "gauge"  # the newest value
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Instrument:
    """One metric. `unit` is in UCUM, annotations in braces. `bounds` are those of a histogram, in that unit, each the
    inclusive upper bound of its bucket."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def per_unit(self) -> int:
        """Values are summed as integers, seconds as nanoseconds. This many of them are one unit."""
        return NS_PER_S if self.unit == "s" else 1


def _bounds(first: int, last: int, *, per_unit: int = 1) -> tuple[float, ...]:
    """Return 1, 2, 5, 10 and so on, from the power of ten `first` to the power of ten `last`, divided by `per_unit`."""
    found = [factor * value for value in _powers(first, last) for factor in (1, 2, 5) if factor * value <= last]
    return tuple(value / per_unit for value in found)


def _powers(first: int, last: int) -> list[int]:
    return [first] if first == last else [first, *_powers(first * 10, last)]


_STEP_S: Final = _bounds(10**6, 10**11, per_unit=NS_PER_S)  # 1 ms to 100 s
_EXECUTION_S: Final = _bounds(10**4, 10**10, per_unit=NS_PER_S)  # 10 us to 10 s
_RATE: Final = tuple(map(float, _bounds(10**6, 10**12)))

PART: Final = "ddptrace.part"
OVERLAP: Final = "ddptrace.overlap"
REASON: Final = "ddptrace.reason"
_BUCKET: Final = ("ddptrace.bucket.reducer", "ddptrace.bucket.index")
_COLLECTIVE: Final = ("ddptrace.collective.op", "ddptrace.collective.group")
_UNIT: Final = ("ddptrace.unit.name", "ddptrace.unit.role")
_GROUP: Final = ("ddptrace.collective.group",)
_RUN: Final = ("ddptrace.world_size", "ddptrace.backend", "ddptrace.torch.version", "host.name", RUN_NAME, JOB_ID)

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

STEP_DURATION: Final = Instrument("ddptrace.step.duration", HISTOGRAM, "s", "Wall time of a step", bounds=_STEP_S)
PHASE_TIME: Final = Instrument("ddptrace.phase.time", COUNTER, "s", "Time in each phase of steps", (PHASE,))
BREAKDOWN_TIME: Final = Instrument(
    "ddptrace.breakdown.time",
    COUNTER,
    "s",
    "Time of steps by use: compute, exposed_comm, exposed_memory or idle; adds up to their windows",
    (PART,),
)
COMM_TIME: Final = Instrument(
    "ddptrace.comm.time", COUNTER, "s", "Time in which any collective ran, hidden under compute or exposed", (OVERLAP,)
)
COMM_OVERLAP_RATIO: Final = Instrument(
    "ddptrace.comm.overlap_ratio", GAUGE, "1", "Hidden share of the communication of the latest steps"
)
COMM_WAIT: Final = Instrument("ddptrace.comm.wait", COUNTER, "s", "Time in which the host was blocked on collectives")

BUCKET_DURATION: Final = Instrument(
    "ddptrace.bucket.duration",
    HISTOGRAM,
    "s",
    "Execution of one gradient bucket's communication",
    _BUCKET,
    bounds=_EXECUTION_S,
)
BUCKET_EXPOSED_TIME: Final = Instrument(
    "ddptrace.bucket.exposed.time", COUNTER, "s", "The bucket's share of the exposed communication", _BUCKET
)
BUCKET_HIDDEN_TIME: Final = Instrument(
    "ddptrace.bucket.hidden.time", COUNTER, "s", "The bucket's communication under compute", _BUCKET
)
BUCKET_SIZE: Final = Instrument("ddptrace.bucket.size", GAUGE, "By", "Bytes of the bucket's gradients", _BUCKET)

UNIT_EXPOSED_TIME: Final = Instrument(
    "ddptrace.unit.exposed.time",
    COUNTER,
    "s",
    "Share of the exposed communication of a unit that is no bucket: FSDP unit, module, stage or experts",
    _UNIT,
)
UNIT_HIDDEN_TIME: Final = Instrument(
    "ddptrace.unit.hidden.time", COUNTER, "s", "The unit's communication under compute", _UNIT
)
UNIT_IO: Final = Instrument(
    "ddptrace.unit.io", COUNTER, "By", "Bytes of the unit's tensors, the larger of input and output of each call", _UNIT
)
DIMENSION_EXPOSED_TIME: Final = Instrument(
    "ddptrace.dimension.exposed.time",
    COUNTER,
    "s",
    "Share of the exposed communication of each dimension of parallelism",
    ("ddptrace.unit.dimension",),
)

COLLECTIVE_CALLS: Final = Instrument("ddptrace.collective.calls", COUNTER, "{call}", "Calls", _COLLECTIVE)
COLLECTIVE_IO: Final = Instrument(
    "ddptrace.collective.io",
    COUNTER,
    "By",
    "Bytes of the calls' tensors, the larger of input and output",
    _COLLECTIVE,
)
COLLECTIVE_TIME: Final = Instrument(
    "ddptrace.collective.time", COUNTER, "s", "Execution time of calls for which it is known", _COLLECTIVE
)
COLLECTIVE_BUS_BANDWIDTH: Final = Instrument(
    "ddptrace.collective.bus_bandwidth", HISTOGRAM, "By/s", "Bus bandwidth of each call", _COLLECTIVE, bounds=_RATE
)
COLLECTIVE_WAIT_FOR_PEERS: Final = Instrument(
    "ddptrace.collective.wait_for_peers", COUNTER, "s", "Time inside collectives until the last rank arrived"
)
COLLECTIVE_SKEW: Final = Instrument(
    "ddptrace.collective.skew",
    HISTOGRAM,
    "s",
    "Time from the first arrival at a collective to the last, reported by its lowest rank",
    _GROUP,
    bounds=_EXECUTION_S,
)
COLLECTIVE_LAST: Final = Instrument(
    "ddptrace.collective.last", COUNTER, "{collective}", "Collectives at which this rank was the last to arrive"
)
COLLECTIVE_LATENESS: Final = Instrument(
    "ddptrace.collective.lateness",
    COUNTER,
    "s",
    "Time in which all other ranks waited at a collective for this one alone, each instant once",
)

RECORDS_DROPPED: Final = Instrument(
    "ddptrace.records.dropped", COUNTER, "{record}", "Records of this rank that are missing", (REASON,)
)
STEPS_DROPPED: Final = Instrument(
    "ddptrace.steps.dropped",
    COUNTER,
    "{step}",
    "Steps that were recorded, and deleted before they were read",
    (REASON,),
)
STEP_LAST: Final = Instrument("ddptrace.step.last", GAUGE, "{step}", "Ordinal of the newest step in these metrics")
RECORD_TIME: Final = Instrument(
    "ddptrace.record.time",
    GAUGE,
    "s",
    "Unix time of the newest record of training; an old one means that the job hangs",
)
RUN_INFO: Final = Instrument("ddptrace.run.info", GAUGE, "{run}", "Always 1; its attributes describe the run", _RUN)

INSTRUMENTS: Final = tuple(declared for declared in list(globals().values()) if isinstance(declared, Instrument))
"""Every instrument above, in this order."""
