"""From a row of a table to the slice that stands for it: its name, its extent, its colour and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.render.trace.lanes import Slice, Unit, nested, numbered, quoted
from ddptrace.render.words import bucket_name, named_bucket, op_name, some_of
from ddptrace.units import duration, size

PHASE_COLOURS = {"data": "yellow", "forward": "rail_response", "backward": "rail_animation", "optimizer": "rail_load"}
NAMES = {kind: tuple(entry.name for entry in fields(kind)) for kind in (StepRow, BucketRow, CollectiveRow)}
COLUMNS = {kind: (names, attrgetter(*names)) for kind, names in NAMES.items()}
LITERAL: dict[type, Callable[[Any], str]] = {
    int: str,
    float: numbered,
    bool: lambda truth: "true" if truth else "false",
}


def measured(values: Iterable[tuple[str, Any]]) -> str:
    """JSON of the values that were measured; what is neither a number nor a truth is written as text."""
    said = [f'"{key}":{LITERAL.get(type(value), text)(value)}' for key, value in values if value is not None]
    return "{" + ",".join(said) + "}"


def text(value: object) -> str:
    return quoted(str(value))


def columns(row: StepRow | BucketRow | CollectiveRow) -> Iterator[tuple[str, Any]]:
    names, values = COLUMNS[type(row)]
    return zip(names, values(row), strict=True)


def step_slice(row: StepRow) -> Slice:
    name = f"step {row.step} · {duration(row.wall_ns)}"
    return Slice(name, "step", row.begin_at_ns, row.end_at_ns, measured(columns(row)), "rail_idle")


def phase_slice(row: PhaseRow) -> Slice:
    colour = PHASE_COLOURS.get(row.phase, "grey")
    return Slice(row.phase, "phase", row.begin_at_ns, row.end_at_ns, f'{{"step":{row.step}}}', colour)


def bucket_slice(row: BucketRow, several_reducers: bool, flow: int) -> Slice:
    """What is said of a bucket wherever it is drawn: the two pictures below give it its begin and end."""
    said = {"parameters": some_of(row.parameters), "seqs": ", ".join(map(str, row.seqs))}
    values = [(key, said.get(key, value)) for key, value in columns(row)]
    args = measured([*values, ("parameter_count", len(row.parameters))])
    name, at = bucket_name(row, several_reducers), row.launch_at_ns
    return Slice(name, "bucket", at, at, args, exposure_colour(row), flow, "f")


def life_unit(row: BucketRow, bucket: Slice) -> Unit:
    """A bucket until its communication began: gradients arrive, it is held for an earlier one, launched, queued."""
    end = row.exec_start_at_ns if row.exec_start_at_ns is not None else row.launch_at_ns
    launch = min(row.launch_at_ns, end)
    ready = launch if row.ready_at_ns is None else min(row.ready_at_ns, launch)
    first = ready if row.first_ready_at_ns is None else min(row.first_ready_at_ns, ready)
    whole = Slice(bucket.name, "bucket", first, end, bucket.args, bucket.colour)
    children = []
    if row.first_ready_at_ns is not None and row.ready_at_ns is not None:
        children = [Slice("gradients", "bucket.ready", first, ready, colour="rail_animation")]
        children += [Slice("held", "bucket.held", ready, launch, colour="grey")] if launch > ready else []
    if row.exec_start_at_ns is not None:
        children.append(Slice("queue", "bucket.queue", launch, end, "{}", "yellow", bucket.flow, "s"))
    return nested(whole, children)


def exec_slice(row: BucketRow, bucket: Slice) -> Slice:
    """A bucket's communication; with no known end it is drawn without length."""
    begin = row.exec_start_at_ns if row.exec_start_at_ns is not None else row.launch_at_ns
    end = row.exec_end_at_ns if row.exec_end_at_ns is not None else begin
    return Slice(bucket.name, "bucket.exec", begin, end, bucket.args, bucket.colour, bucket.flow, "f")


def exposure_colour(row: BucketRow) -> str:
    if row.comm_ns is None or row.exposed_ns is None:
        return "grey"
    return "good" if row.exposed_ns * 10 < row.comm_ns else "bad" if row.exposed_ns * 2 < row.comm_ns else "terrible"


def collective_slice(row: CollectiveRow) -> Slice:
    """From the start of its execution where that is known, else from its launch, to the last that was seen of it."""
    begin = row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns
    ends = [end for end in (row.exec_end_at_ns, row.done_at_ns) if end is not None]
    args = measured([*columns(row), ("drawn_from", "launch" if row.exec_start_at_ns is None else "exec")])
    return Slice(collective_name(row), "collective", begin, ends[0] if ends else begin, args)


def collective_name(row: CollectiveRow | MatchRow) -> str:
    """By its operation, or as in "blocks.3 · unshard · 1.05 MB" by the unit that it serves."""
    if isinstance(row, CollectiveRow) and row.unit is not None and row.bucket is None:
        return f"{row.unit} · {row.unit_role} · {size(row.nbytes)}"
    return f"{op_name(row.op)} · {size(row.nbytes)}"


def met_name(row: MatchRow, several_reducers: bool) -> str:
    """By the bucket that it carried, where it did."""
    if row.bucket is None:
        return collective_name(row)
    reducer, _, index = row.bucket
    return named_bucket(reducer if several_reducers else None, index, row.nbytes)


def wait_slice(row: BucketRow | CollectiveRow, begin: int, end: int, several_reducers: bool) -> Slice:
    name = bucket_name(row, several_reducers) if isinstance(row, BucketRow) else collective_name(row)
    args = measured([("evidence", row.evidence), ("placed", "to end when the host learned that it was over")])
    return Slice(f"waits for {name}", "wait", begin, end, args, "thread_state_uninterruptible")
