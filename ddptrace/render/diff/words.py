"""What changed, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.errors import printable
from ddptrace.render.words import PARTS, cut
from ddptrace.units import (
    NOT_MEASURED,
    counted,
    duration,
    percent,
    signed,
    signed_millis,
    signed_percent,
    size,
)

NAMES: Final = PARTS | {"comm": "communication", "wall": "step on the host", "exposed": "exposed", "step": "step"}
LONG_NAME: Final = 60
OVERLAP_MIN: Final = 0.01


def headline(diff: Diff) -> str:
    """One sentence on the step: `The step takes 12.3 ms longer (+8 %, 95 % +9.1 .. +15.0 ms): …`."""
    step = diff.step
    if diff.basis in ("blocks", "none"):
        told = f" ({interval(step)}, from blocks of their steps)" if step.low_ns is not None else ""
        return f"Between these runs the step differs by {signed(step.change_ns)}{told}: {parts(diff)}."
    if not step.is_sure:
        return (
            f"No sure change of the step: {signed(step.change_ns)} ({interval(step)}), on steps of"
            f" {duration(step.before_ns)}."
        )
    way = "longer" if step.change_ns > 0 else "less"
    return f"The step takes {duration(abs(step.change_ns))} {way} ({interval(step)}): {parts(diff)}."


def interval(row: Change) -> str:
    """As in `+8 %, 95 % +9.10 .. +15.0 ms`."""
    ratio = [signed_percent(row.change_ratio)] if row.change_ratio is not None else []
    if row.low_ns is not None:
        ratio.append(f"95 % {reach(row)} ms")
    return ", ".join(ratio)


def reach(row: Change) -> str:
    """As in `+9.10 .. +15.0`, in ms."""
    if row.low_ns is None or row.high_ns is None:
        return NOT_MEASURED
    return f"{signed_millis(row.low_ns)} .. {signed_millis(row.high_ns)}"


def parts(diff: Diff) -> str:
    """The parts of the step's change, largest first: `exposed communication +10.9 ms, compute +1.2, idle +0.2`. Where
    the sides were not measured alike, its phases."""
    kind = "part" if any(row.kind == "part" for row in diff.changes) else "phase"
    rows = sorted((row for row in diff.changes if row.kind == kind), key=lambda row: -abs(row.change_ns))
    told = [f"{named(row)} {signed_millis(row.change_ns)}" for row in rows if row.change_ns]
    return ", ".join([f"{told[0]} ms", *told[1:]]) if told else "no part of it differs"


def further(diff: Diff) -> Iterator[str]:
    """Which bucket and which rank, and what changed without the step."""
    bucket, rank = diff.bucket, diff.rank
    if _overlap_is_told(diff):
        yield overlap_words(diff)
    if bucket is not None:
        yield _bucket_words(diff, bucket)
    if rank is not None:
        way = "longer" if rank.change_ns > 0 else "less"
        yield f"Rank {rank.rank} computes {duration(abs(rank.change_ns))} {way} ({interval(rank)})."
    rest = [row for row in diff.changes if row.kind in ("part", "phase", "total") and row.is_sure]
    if rest and not diff.step.is_sure:
        yield (
            "These changes are sure, although that of the step is not: "
            + ", ".join(f"{named(row)} {signed(row.change_ns)} ({interval(row)})" for row in rest)
            + "."
        )


def _overlap_is_told(diff: Diff) -> bool:
    """Where it changed by a percent that can be read, and nothing but these runs is spoken of, or surely."""
    if diff.overlap is None or abs(diff.overlap[1] - diff.overlap[0]) < OVERLAP_MIN:
        return False
    rows = (row for row in diff.changes if (row.kind, row.name) in (("part", "exposed_comm"), ("total", "comm")))
    return diff.basis in ("blocks", "none") or any(row.is_sure for row in rows)


def overlap_words(diff: Diff) -> str:
    """As in "50 % of the communication was hidden, and now 20 %: most by bucket 1 of reducer 0, whose exposed time
    changed by +3.10 ms."."""
    assert diff.overlap is not None
    before, after = map(percent, diff.overlap)
    cause = diff.overlap_changed_by
    told = f"{before} of the communication is hidden before, {after} after"
    if cause is None:
        return f"{told}."
    what = bucket_name(cause) if cause.kind == "bucket" else collective_name(cause)
    return f"{told}. Exposed time changed most by {what}: {signed(cause.change_ns)}."


def _bucket_words(diff: Diff, row: Change) -> str:
    """Its own communication, and what is exposed of it."""
    what = "communicates" if row.name == "comm" else "is exposed"
    way = "longer" if row.change_ns > 0 else "less"
    told = f"{bucket_name(row).capitalize()} {what} {duration(abs(row.change_ns))} {way} ({interval(row)})"
    exposed = next(other for other in diff.changes if _key(other) == ("bucket", "exposed", _place(row)))
    also = f", and {signed(exposed.change_ns)} of it shows in the step" if row.name == "comm" else ""
    holds = f"; it holds {cut(row.parameters[-1], LONG_NAME)}" if row.parameters else ""
    return told + also + holds + "."


def _key(row: Change) -> tuple[object, ...]:
    return (row.kind, row.name, _place(row))


def _place(row: Change) -> tuple[object, ...]:
    return (row.reducer, row.layout, row.index)


def named(row: Change) -> str:
    """The quantity, without the bucket or rank that it is of."""
    return NAMES.get(row.name, row.name)


def bucket_name(row: Change) -> str:
    return f"bucket {row.index} of reducer {row.reducer}"


def collective_name(row: Change) -> str:
    """As in `all_gather (fsdp)`."""
    return f"{row.op}{f' ({row.origin})' if row.origin else ''}"


def unit_name(row: Change) -> str:
    """As in `layers.0 unshard, backward`."""
    return f"{row.unit} {row.role}{f', {row.phase}' if row.phase else ''}"


def whole_name(row: Change) -> str:
    """With the bucket or rank."""
    if row.kind == "bucket":
        return f"{bucket_name(row)} ({size(row.nbytes)}): {named(row)}"
    if row.kind == "collective":
        return f"{collective_name(row)}: {named(row)}"
    if row.kind == "unit":
        return f"{unit_name(row)}: {named(row)}"
    return f"rank {row.rank}: {named(row)}" if row.kind == "rank" else named(row)


def sides(diff: Diff) -> str:
    """As in `before/ (6 runs) → after/ (6 runs)`."""
    counts = [sum(row.side == side for row in diff.runs) for side in ("before", "after")]
    shown = (
        f"{cut(name, LONG_NAME)} ({counted(count, 'run')})"
        for name, count in zip((diff.before, diff.after), counts, strict=True)
    )
    return " → ".join(shown)


def basis(diff: Diff) -> str:
    """Say how chance was estimated."""
    before, after = diff.units
    if diff.basis == "none":
        return "How large a change by chance can be is unknown here."
    if diff.basis == "blocks":
        return f"Intervals compare {counted(before, 'block')} of steps with {after}, and hold for these runs alone."
    units = (
        counted(before, "pair") + " of runs" if diff.basis == "pairs" else f"{counted(before, 'run')} against {after}"
    )
    spread = (
        ""
        if diff.run_ratio is None
        else f" Runs of one side differ by {100 * diff.run_ratio:.1f} % (standard deviation)."
    )
    return f"Chance is estimated from {units}: 19 of 20 comparisons of equal sides find no sure change.{spread}"


def setting_words(name: str, before: str, after: str) -> str:
    return f"{printable(name)}: {printable(before)} → {printable(after)}"


def exceeded_words(limit: str, rows: Sequence[Change]) -> str:
    """Of a limit that is exceeded, by what and by how much."""
    told = "; ".join(f"{whole_name(row)} {signed(row.change_ns)} ({interval(row)})" for row in rows)
    return f"{printable(limit)}: exceeded by {told}"
