"""The attributes of every span, frozen: other people's dashboards and queries depend on these names.

`trees.py` builds the spans and gives each its name and its times, as follows:

    span                  name                            from                          to
    step                  step · rank 0                   end of the previous update    end of this one
    phase                 forward · rank 0, …             its begin                     its end
    bucket                bucket 7 · rank 0               first gradient ready          communication over
    collective            all_reduce 4.70 MB · rank 0     communication begins          communication over

Search by `ddptrace.span.kind`, which has the words of the first column.

If the begin of communication is not known, a bucket or collective begins with its launch. If the end is not known, it
ends when the host learned of it, else with the launch; then it has no `ddptrace.comm.evidence`. All durations are
integer nanoseconds, sizes bytes, ratios 0..1. A value that was not measured has no attribute.

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
from ddptrace.telemetry.common_attributes import PHASE, Value, carried
from ddptrace.telemetry.rows import Meeting

Row = TypeVar("Row", contravariant=True)


@dataclass(frozen=True, slots=True)
class Attribute(Generic[Row]):
    """One attribute of one kind of span. `read` takes its value from the span's row; None: not measured."""

    name: str
    type: type[Value]
    meaning: str
    read: Callable[[Row], Value | None]


def _text(evidence: Evidence | None) -> str | None:
    return None if evidence is None else evidence.value


def _error_type(row: CollectiveRow) -> str | None:
    """Return one of a few classes, as OpenTelemetry asks; the message itself is the span's status."""
    if row.error is None:
        return None
    message = row.error.lower()
    if "timed out" in message or "timeout" in message:
        return "timeout"
    return "connection" if "connection" in message else "_OTHER"


def _ratio(row: BucketRow | CollectiveRow) -> float | None:
    return row.hidden_ns / row.comm_ns if row.hidden_ns is not None and row.comm_ns else None


def _fill_ns(row: BucketRow) -> int | None:
    if row.first_ready_at_ns is None or row.ready_at_ns is None:
        return None
    return row.ready_at_ns - row.first_ready_at_ns


def _launch_delay_ns(row: BucketRow) -> int | None:
    return None if row.ready_at_ns is None else row.launch_at_ns - row.ready_at_ns


STEP_ATTRIBUTES: Final[tuple[Attribute[StepRow], ...]] = (
    Attribute("ddptrace.breakdown.window_ns", int, "sum of the breakdown", lambda row: row.window_ns),
    Attribute("ddptrace.breakdown.compute_ns", int, "compute", lambda row: row.compute_ns),
    Attribute(
        "ddptrace.breakdown.exposed_comm_ns", int, "communication without compute", lambda row: row.exposed_comm_ns
    ),
    Attribute(
        "ddptrace.breakdown.exposed_memory_ns",
        int,
        "memory copies without compute and communication",
        lambda row: row.exposed_memory_ns,
    ),
    Attribute("ddptrace.breakdown.idle_ns", int, "none of these three", lambda row: row.idle_ns),
    Attribute("ddptrace.comm.duration_ns", int, "union of its collectives' execution", lambda row: row.comm_ns),
    Attribute("ddptrace.comm.hidden_ns", int, "part of that under compute", lambda row: row.hidden_ns),
    Attribute("ddptrace.comm.overlap_ratio", float, "hidden / duration", lambda row: row.overlap_ratio),
    Attribute(
        "ddptrace.comm.wait_ns", int, "time in which the host was blocked on collectives", lambda row: row.wait_ns
    ),
    Attribute("ddptrace.comm.evidence", str, "weakest evidence among its collectives", lambda row: _text(row.evidence)),
    Attribute("ddptrace.profiled", bool, "whether a profiler measured compute", lambda row: row.profiled),
    Attribute("ddptrace.paused_ns", int, "time in which ddptrace itself held the thread", lambda row: row.paused_ns),
    Attribute("ddptrace.ended_by", str, "optimizer, backward or said (by `t.step()`)", lambda row: row.ended_by),
)

PHASE_ATTRIBUTES: Final[tuple[Attribute[PhaseRow], ...]] = (
    Attribute(PHASE, str, "data, forward, backward, optimizer or other", lambda row: row.phase),
)

_COMM: Final[tuple[Attribute[BucketRow | CollectiveRow], ...]] = (
    Attribute("ddptrace.comm.queue_ns", int, "from launch to begin of execution", lambda row: row.queue_ns),
    Attribute("ddptrace.comm.duration_ns", int, "execution", lambda row: row.comm_ns),
    Attribute("ddptrace.comm.hidden_ns", int, "part of that under compute", lambda row: row.hidden_ns),
    Attribute("ddptrace.comm.exposed_ns", int, "part of that not under compute", lambda row: row.exposed_ns),
    Attribute(
        "ddptrace.comm.exposed_charged_ns",
        int,
        "its share of the step's exposed communication",
        lambda row: row.exposed_charged_ns,
    ),
    Attribute("ddptrace.comm.overlap_ratio", float, "hidden / duration", lambda row: _ratio(row)),
    Attribute("ddptrace.comm.wait_ns", int, "time in which the host was blocked on it", lambda row: row.wait_ns),
    Attribute("ddptrace.comm.evidence", str, "device, backend, callback or host", lambda row: _text(row.evidence)),
)

BUCKET_ATTRIBUTES: Final[tuple[Attribute[BucketRow], ...]] = (
    Attribute(
        "ddptrace.bucket.reducer", int, "number of the reducer; each DDP module has one", lambda row: row.reducer
    ),
    Attribute("ddptrace.bucket.layout", int, "goes up by one at each rebuild", lambda row: row.layout),
    Attribute("ddptrace.bucket.index", int, "position in launch order", lambda row: row.index),
    Attribute("ddptrace.bucket.backward", int, "ordinal of the backward in its step", lambda row: row.backward),
    Attribute("ddptrace.bucket.nbytes", int, "bytes of its gradients", lambda row: row.nbytes),
    Attribute("ddptrace.bucket.parameters", int, "number of its parameters", lambda row: len(row.parameters)),
    Attribute(
        "ddptrace.bucket.first_parameter",
        str,
        "name of its first parameter",
        lambda row: next(iter(row.parameters), None),
    ),
    Attribute(
        "ddptrace.bucket.last_parameter",
        str,
        "name of its last parameter",
        lambda row: next(reversed(row.parameters), None),
    ),
    Attribute("ddptrace.bucket.fill_ns", int, "from first to last gradient", lambda row: _fill_ns(row)),
    Attribute(
        "ddptrace.bucket.launch_delay_ns", int, "from last gradient to launch", lambda row: _launch_delay_ns(row)
    ),
    Attribute("ddptrace.bucket.hook", str, "the user's communication hook", lambda row: row.hook),
    Attribute("ddptrace.bucket.hook_ns", int, "host time inside the hook", lambda row: row.hook_ns),
    *_COMM,
)

COLLECTIVE_ATTRIBUTES: Final[tuple[Attribute[CollectiveRow], ...]] = (
    Attribute("ddptrace.collective.op", str, "operation, as in the span's name", lambda row: row.op),
    Attribute("ddptrace.collective.group", str, "name of its process group", lambda row: row.group),
    Attribute(
        "ddptrace.collective.ordinal", int, "k if it is the k-th call of its group on its rank", lambda row: row.ordinal
    ),
    Attribute("ddptrace.collective.seq", int, "its number on its rank", lambda row: row.seq),
    Attribute("ddptrace.collective.nbytes", int, "the larger of input and output", lambda row: row.nbytes),
    Attribute("ddptrace.collective.dtype", str, "data type of its tensors", lambda row: row.dtype),
    Attribute(
        "ddptrace.collective.origin", str, "what asked for it, a value of `schema.Origin`", lambda row: row.origin
    ),
    Attribute("ddptrace.collective.site", str, "line of the program that called it", lambda row: row.site),
    Attribute("ddptrace.collective.through", str, "line of the library that issued it", lambda row: row.through),
    Attribute("ddptrace.collective.module", str, "nn.Module in which it ran", lambda row: row.module),
    Attribute("ddptrace.unit.name", str, "unit that it communicated for", lambda row: row.unit),
    Attribute("ddptrace.unit.role", str, "what it did for its unit", lambda row: row.unit_role),
    Attribute("ddptrace.unit.dimension", str, "dimension of parallelism", lambda row: row.dimension),
    Attribute("ddptrace.collective.turn", int, "its number in its group, the same on all ranks", lambda row: row.turn),
    Attribute("ddptrace.collective.peer", int, "rank at the other end, or its root", lambda row: row.peer),
    Attribute("ddptrace.collective.group_size", int, "number of ranks in its group", lambda row: row.group_size),
    Attribute("error.type", str, "timeout, connection or _OTHER if it failed", lambda row: _error_type(row)),
    Attribute("ddptrace.profiler.range", str, "its name in the profiler's file", lambda row: row.profiler_range),
    Attribute("ddptrace.comm.lane", str, "stream or thread on which it ran", lambda row: row.lane),
    Attribute("ddptrace.comm.busbw_bytes_per_s", float, "bus bandwidth", lambda row: row.busbw_bytes_per_s),
    Attribute(
        "ddptrace.bucket.reducer",
        int,
        "reducer of the bucket that it carried",
        lambda row: row.bucket and row.bucket[0],
    ),
    Attribute(
        "ddptrace.bucket.layout", int, "layout of the bucket that it carried", lambda row: row.bucket and row.bucket[1]
    ),
    Attribute(
        "ddptrace.bucket.index", int, "index of the bucket that it carried", lambda row: row.bucket and row.bucket[2]
    ),
    *_COMM,
)

MEETING_ATTRIBUTES: Final[tuple[Attribute[Meeting], ...]] = (
    Attribute(
        "ddptrace.comm.wait_for_peers_ns",
        int,
        "execution until the last rank arrived",
        lambda row: row.wait_for_peers_ns,
    ),
    Attribute("ddptrace.comm.transfer_ns", int, "the rest of its execution", lambda row: row.transfer_ns),
    Attribute("ddptrace.collective.last_rank", int, "rank that arrived last", lambda row: row.last_rank),
    Attribute("ddptrace.collective.skew_ns", int, "from first arrival to last", lambda row: row.skew_ns),
)


def read_attributes(table: tuple[Attribute[Row], ...], row: Row) -> dict[str, Value]:
    """Return a row's attributes, without those that were not measured."""
    values = ((attribute.name, attribute.read(row)) for attribute in table)
    return {name: carried(value) for name, value in values if value is not None}
