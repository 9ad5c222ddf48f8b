"""The attributes of every span, frozen: dashboards and queries of other people rest on these names.

    span                  name                    from                          to
    step                  step                    end of the previous update    end of this one
    phase                 forward, backward, …    its begin                     its end
    bucket                bucket                  first gradient ready          communication over
    collective            all_reduce, …           communication begins          communication over

Where the begin of communication is not known, a bucket or collective begins with its launch; where the end is not, it
ends when the host learned of it, else with the launch: then it has no `ddptrace.comm.evidence`. All durations are
integer nanoseconds, sizes bytes, ratios 0..1. What was not measured has no attribute.

A collective that failed has the status ERROR, with the words of its error, and `error.type`. It is linked to the spans
of the same collective on the next ranks of its group; each link has `ddptrace.rank`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.schema import Evidence
from ddptrace.telemetry.rows import Meeting

Value = str | int | float | bool
Row = TypeVar("Row", contravariant=True)

RUN_ID: Final = "ddptrace.run.id"  # on every span: the run's 128-bit id in hex
RANK: Final = "ddptrace.rank"  # on every span
STEP: Final = "ddptrace.step"  # on every span of a step: the step's ordinal on its rank, from 0
PHASE: Final = "ddptrace.phase"  # on phases; on buckets and collectives the phase that launched them


TEXT_MAX: Final = 1_000
"""Signs of a text. One that nobody would read could else make a request larger than any collector takes."""
INT_MAX: Final = 2**63 - 1


def carried_text(text: str) -> str:
    """Return as much of the text as is read, in UTF-8."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


def carried(value: Value) -> Value:
    """Return the value, of whatever a damaged run holds, as OTLP can carry it: an integer of at most 64 bits, text as
    `carried_text` gives it."""
    if isinstance(value, str):
        return carried_text(value)
    return min(max(value, -INT_MAX - 1), INT_MAX) if isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class Attribute(Generic[Row]):
    """One attribute of one kind of span. `read` takes it from the row that the span tells of; None: not measured."""

    name: str
    type: type[Value]
    meaning: str
    read: Callable[[Row], Value | None]


def _text(evidence: Evidence | None) -> str | None:
    return None if evidence is None else evidence.value


def _error_type(row: CollectiveRow) -> str | None:
    """A few classes, as the standard wants of it; the words themselves are the span's status."""
    if row.error is None:
        return None
    said = row.error.lower()
    if "timed out" in said or "timeout" in said:
        return "timeout"
    return "connection" if "connection" in said else "_OTHER"


def _ratio(row: BucketRow | CollectiveRow) -> float | None:
    return row.hidden_ns / row.comm_ns if row.hidden_ns is not None and row.comm_ns else None


def _fill_ns(row: BucketRow) -> int | None:
    if row.first_ready_at_ns is None or row.ready_at_ns is None:
        return None
    return row.ready_at_ns - row.first_ready_at_ns


def _launch_delay_ns(row: BucketRow) -> int | None:
    return None if row.ready_at_ns is None else row.launch_at_ns - row.ready_at_ns


STEP_ATTRIBUTES: Final[tuple[Attribute[StepRow], ...]] = (
    Attribute("ddptrace.breakdown.window_ns", int, "what the breakdown adds up to", lambda row: row.window_ns),
    Attribute("ddptrace.breakdown.compute_ns", int, "computing", lambda row: row.compute_ns),
    Attribute("ddptrace.breakdown.exposed_comm_ns", int, "else communicating", lambda row: row.exposed_comm_ns),
    Attribute("ddptrace.breakdown.exposed_memory_ns", int, "else copying", lambda row: row.exposed_memory_ns),
    Attribute("ddptrace.breakdown.idle_ns", int, "none of these", lambda row: row.idle_ns),
    Attribute("ddptrace.comm.duration_ns", int, "union of its collectives' execution", lambda row: row.comm_ns),
    Attribute("ddptrace.comm.hidden_ns", int, "of that, under compute", lambda row: row.hidden_ns),
    Attribute("ddptrace.comm.overlap_ratio", float, "hidden / duration", lambda row: row.overlap_ratio),
    Attribute("ddptrace.comm.wait_ns", int, "the host blocked on collectives", lambda row: row.wait_ns),
    Attribute("ddptrace.comm.evidence", str, "the weakest of its collectives", lambda row: _text(row.evidence)),
    Attribute("ddptrace.profiled", bool, "compute comes from a profiler", lambda row: row.profiled),
    Attribute("ddptrace.paused_ns", int, "ddptrace itself held the thread", lambda row: row.paused_ns),
    Attribute("ddptrace.ended_by", str, "optimizer, backward or said", lambda row: row.ended_by),
)

PHASE_ATTRIBUTES: Final[tuple[Attribute[PhaseRow], ...]] = (
    Attribute(PHASE, str, "data, forward, backward, optimizer or other", lambda row: row.phase),
)

_COMM: Final[tuple[Attribute[BucketRow | CollectiveRow], ...]] = (
    Attribute("ddptrace.comm.queue_ns", int, "launch to begin of execution", lambda row: row.queue_ns),
    Attribute("ddptrace.comm.duration_ns", int, "execution", lambda row: row.comm_ns),
    Attribute("ddptrace.comm.hidden_ns", int, "of that, under compute", lambda row: row.hidden_ns),
    Attribute("ddptrace.comm.exposed_ns", int, "the rest", lambda row: row.exposed_ns),
    Attribute(
        "ddptrace.comm.exposed_charged_ns", int, "share of the step's exposed", lambda row: row.exposed_charged_ns
    ),
    Attribute("ddptrace.comm.overlap_ratio", float, "hidden / duration", lambda row: _ratio(row)),
    Attribute("ddptrace.comm.wait_ns", int, "the host blocked on it", lambda row: row.wait_ns),
    Attribute("ddptrace.comm.evidence", str, "device, backend, callback or host", lambda row: _text(row.evidence)),
)

BUCKET_ATTRIBUTES: Final[tuple[Attribute[BucketRow], ...]] = (
    Attribute("ddptrace.bucket.reducer", int, "number of the reducer (a DDP module has one)", lambda row: row.reducer),
    Attribute("ddptrace.bucket.layout", int, "up by one at each rebuild", lambda row: row.layout),
    Attribute("ddptrace.bucket.index", int, "in launch order", lambda row: row.index),
    Attribute("ddptrace.bucket.backward", int, "ordinal of the backward in its step", lambda row: row.backward),
    Attribute("ddptrace.bucket.nbytes", int, "of its gradients", lambda row: row.nbytes),
    Attribute("ddptrace.bucket.parameters", int, "how many", lambda row: len(row.parameters)),
    Attribute("ddptrace.bucket.first_parameter", str, "its name", lambda row: next(iter(row.parameters), None)),
    Attribute("ddptrace.bucket.last_parameter", str, "its name", lambda row: next(reversed(row.parameters), None)),
    Attribute("ddptrace.bucket.fill_ns", int, "first to last gradient", lambda row: _fill_ns(row)),
    Attribute("ddptrace.bucket.launch_delay_ns", int, "last gradient to launch", lambda row: _launch_delay_ns(row)),
    Attribute("ddptrace.bucket.hook", str, "the user's communication hook", lambda row: row.hook),
    Attribute("ddptrace.bucket.hook_ns", int, "host time inside it", lambda row: row.hook_ns),
    *_COMM,
)

COLLECTIVE_ATTRIBUTES: Final[tuple[Attribute[CollectiveRow], ...]] = (
    Attribute("ddptrace.collective.op", str, "as the span is named", lambda row: row.op),
    Attribute("ddptrace.collective.group", str, "process group", lambda row: row.group),
    Attribute("ddptrace.collective.ordinal", int, "k-th call of its group on its rank", lambda row: row.ordinal),
    Attribute("ddptrace.collective.seq", int, "its number on its rank", lambda row: row.seq),
    Attribute("ddptrace.collective.nbytes", int, "the larger of input and output", lambda row: row.nbytes),
    Attribute("ddptrace.collective.dtype", str, "of its tensors", lambda row: row.dtype),
    Attribute("ddptrace.collective.origin", str, "who wanted it, a word of `schema.Origin`", lambda row: row.origin),
    Attribute("ddptrace.collective.site", str, "the program's line that it comes from", lambda row: row.site),
    Attribute("ddptrace.collective.through", str, "the library's line that issued it", lambda row: row.through),
    Attribute("ddptrace.collective.module", str, "nn.Module that it belongs to", lambda row: row.module),
    Attribute("ddptrace.collective.turn", int, "same on all ranks of its group", lambda row: row.turn),
    Attribute("ddptrace.collective.peer", int, "rank at the other end, or its root", lambda row: row.peer),
    Attribute("ddptrace.collective.group_size", int, "ranks in its group", lambda row: row.group_size),
    Attribute("error.type", str, "timeout, connection or _OTHER, where it failed", lambda row: _error_type(row)),
    Attribute("ddptrace.profiler.range", str, "its name in the profiler's file", lambda row: row.profiler_range),
    Attribute("ddptrace.comm.lane", str, "stream or thread that it ran on", lambda row: row.lane),
    Attribute("ddptrace.comm.busbw_bytes_per_s", float, "bus bandwidth", lambda row: row.busbw_bytes_per_s),
    Attribute("ddptrace.bucket.reducer", int, "of the bucket it carried", lambda row: row.bucket and row.bucket[0]),
    Attribute("ddptrace.bucket.layout", int, "of the bucket it carried", lambda row: row.bucket and row.bucket[1]),
    Attribute("ddptrace.bucket.index", int, "of the bucket it carried", lambda row: row.bucket and row.bucket[2]),
    *_COMM,
)

MEETING_ATTRIBUTES: Final[tuple[Attribute[Meeting], ...]] = (
    Attribute("ddptrace.comm.wait_for_peers_ns", int, "until the last rank came", lambda row: row.wait_for_peers_ns),
    Attribute("ddptrace.comm.transfer_ns", int, "the rest of its execution", lambda row: row.transfer_ns),
    Attribute("ddptrace.collective.last_rank", int, "the last one to arrive", lambda row: row.last_rank),
    Attribute("ddptrace.collective.skew_ns", int, "first arrival to last", lambda row: row.skew_ns),
)


def read_attributes(table: tuple[Attribute[Row], ...], row: Row) -> dict[str, Value]:
    """A row's attributes, without those that were not measured."""
    values = ((attribute.name, attribute.read(row)) for attribute in table)
    return {name: carried(value) for name, value in values if value is not None}
