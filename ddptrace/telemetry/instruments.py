"""The metrics, frozen: dashboards, alerts and queries of other people rest on these names.

Every point has `ddptrace.run.id` and `ddptrace.rank` beside the attributes given here, so that no join is needed. Sums
are cumulative from the rank's start, and add up complete steps, each once, and collectives in the step that launched
them. What was not measured has no point. Prometheus has the names that OpenTelemetry's translation gives them:
`ddptrace.step.duration` in s is `ddptrace_step_duration_seconds`, its attribute `ddptrace.rank` the label
`ddptrace_rank`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddptrace.telemetry.attributes import PHASE

OTHER: Final = "other"
"""What the attributes of all say that have no point of their own, so that the number of points stays bounded."""
COLLECTIVES_MAX: Final = 64
"""Pairs of op and group that one rank tells apart."""
BUCKETS_MAX: Final = 256
"""Pairs of reducer and index that one rank tells apart."""

NS_PER_S: Final = 10**9


class Kind(StrEnum):
    COUNTER = "counter"  # goes up only
    GAUGE = "gauge"  # the newest value
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Instrument:
    """One metric. `unit` as UCUM has it, annotations in braces; `bounds` of a histogram in that unit, each the upper
    one of its bucket and part of it."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def per_unit(self) -> int:
        """Values are added up as integers, seconds as nanoseconds: so many of them are one unit."""
        return NS_PER_S if self.unit == "s" else 1


def _bounds(first: int, last: int, *, per_unit: int = 1) -> tuple[float, ...]:
    """1, 2, 5, 10 and so on from the power of ten `first` to the power of ten `last`, of which `per_unit` are one."""
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
_GROUP: Final = ("ddptrace.collective.group",)
_RUN: Final = ("ddptrace.world_size", "ddptrace.backend", "ddptrace.torch.version", "host.name")

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

STEP_DURATION: Final = Instrument(
    "ddptrace.step.duration", HISTOGRAM, "s", "Wall time of a step", bounds=_STEP_S
)  # fmt: skip
PHASE_TIME: Final = Instrument("ddptrace.phase.time", COUNTER, "s", "Time in each phase of steps", (PHASE,))
BREAKDOWN_TIME: Final = Instrument(
    "ddptrace.breakdown.time", COUNTER, "s",
    "Where the time of steps went: compute, exposed_comm, exposed_memory or idle; adds up to their windows", (PART,),
)  # fmt: skip
COMM_TIME: Final = Instrument(
    "ddptrace.comm.time", COUNTER, "s", "Time in which any collective ran, hidden under compute or exposed", (OVERLAP,)
)
COMM_OVERLAP_RATIO: Final = Instrument(
    "ddptrace.comm.overlap_ratio", GAUGE, "1", "Hidden share of the communication of the latest steps"
)
COMM_WAIT: Final = Instrument("ddptrace.comm.wait", COUNTER, "s", "Time in which the host was blocked on collectives")

BUCKET_DURATION: Final = Instrument(
    "ddptrace.bucket.duration", HISTOGRAM, "s", "Execution of one gradient bucket's communication", _BUCKET,
    bounds=_EXECUTION_S,
)  # fmt: skip
BUCKET_EXPOSED_TIME: Final = Instrument(
    "ddptrace.bucket.exposed.time", COUNTER, "s", "The bucket's share of the exposed communication", _BUCKET
)
BUCKET_HIDDEN_TIME: Final = Instrument(
    "ddptrace.bucket.hidden.time", COUNTER, "s", "The bucket's communication under compute", _BUCKET
)
BUCKET_SIZE: Final = Instrument("ddptrace.bucket.size", GAUGE, "By", "Bytes of the bucket's gradients", _BUCKET)

COLLECTIVE_CALLS: Final = Instrument("ddptrace.collective.calls", COUNTER, "{call}", "Calls", _COLLECTIVE)
COLLECTIVE_IO: Final = Instrument(
    "ddptrace.collective.io", COUNTER, "By", "Bytes of the calls' tensors, of the larger of input and output",
    _COLLECTIVE,
)  # fmt: skip
COLLECTIVE_TIME: Final = Instrument(
    "ddptrace.collective.time", COUNTER, "s", "Execution, of calls of which it is known", _COLLECTIVE
)
COLLECTIVE_BUS_BANDWIDTH: Final = Instrument(
    "ddptrace.collective.bus_bandwidth", HISTOGRAM, "By/s", "Bus bandwidth of each call", _COLLECTIVE, bounds=_RATE
)
COLLECTIVE_WAIT_FOR_PEERS: Final = Instrument(
    "ddptrace.collective.wait_for_peers", COUNTER, "s", "Time inside collectives until the last rank arrived"
)
COLLECTIVE_SKEW: Final = Instrument(
    "ddptrace.collective.skew", HISTOGRAM, "s",
    "First arrival at a collective to the last, told by the lowest of its ranks", _GROUP, bounds=_EXECUTION_S,
)  # fmt: skip
COLLECTIVE_LAST: Final = Instrument(
    "ddptrace.collective.last", COUNTER, "{collective}", "Collectives at which this rank was the last to arrive"
)
COLLECTIVE_LATENESS: Final = Instrument(
    "ddptrace.collective.lateness", COUNTER, "s",
    "Time in which all others had arrived at a collective and waited for this rank alone, each instant once",
)  # fmt: skip

RECORDS_DROPPED: Final = Instrument(
    "ddptrace.records.dropped", COUNTER, "{record}", "Records that are missing of this rank", (REASON,)
)
STEPS_DROPPED: Final = Instrument(
    "ddptrace.steps.dropped", COUNTER, "{step}", "Steps that were recorded, and let go before they were read", (REASON,)
)
STEP_LAST: Final = Instrument("ddptrace.step.last", GAUGE, "{step}", "Ordinal of the newest step that is counted here")
RECORD_TIME: Final = Instrument(
    "ddptrace.record.time", GAUGE, "s", "Unix time of the newest record of training: its age tells a job that hangs"
)
RUN_INFO: Final = Instrument("ddptrace.run.info", GAUGE, "{run}", "Always 1; what is known of the run", _RUN)

INSTRUMENTS: Final = (
    STEP_DURATION, PHASE_TIME, BREAKDOWN_TIME, COMM_TIME, COMM_OVERLAP_RATIO, COMM_WAIT,
    BUCKET_DURATION, BUCKET_EXPOSED_TIME, BUCKET_HIDDEN_TIME, BUCKET_SIZE,
    COLLECTIVE_CALLS, COLLECTIVE_IO, COLLECTIVE_TIME, COLLECTIVE_BUS_BANDWIDTH,
    COLLECTIVE_WAIT_FOR_PEERS, COLLECTIVE_SKEW, COLLECTIVE_LAST, COLLECTIVE_LATENESS,
    RECORDS_DROPPED, STEPS_DROPPED, STEP_LAST, RECORD_TIME, RUN_INFO,
)  # fmt: skip
