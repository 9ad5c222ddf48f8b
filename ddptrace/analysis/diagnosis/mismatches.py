"""Ranks that called different things at one turn of a process group, as far as their last calls tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptrace.analysis.diagnosis.places import at_words, group_words, op_words, where_words
from ddptrace.analysis.diagnosis.tables import Verdict
from ddptrace.analysis.matching.calls import Calls, Mark
from ddptrace.analysis.matching.desync import parting
from ddptrace.analysis.tables.ranks import DesyncRow
from ddptrace.analysis.wording import amount, named
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, RankState


@dataclass(frozen=True, slots=True)
class Shown:
    """A group on one rank. `own` is empty where it has not called in it."""

    rank: RankState
    own: GroupState


def mismatch_verdict(job: JobState, name: str, shown: Sequence[Shown]) -> Verdict | None:
    calls = [Calls(one.rank.rank, [_mark(call) for call in one.own.calls]) for one in shown if one.own.calls]
    found = parting(name, calls) if len(calls) > 1 else None
    if found is None or found.turn is None:
        return None
    rows = [row for row in found.rows if row.op and row.turn == found.turn]
    there = {one.rank.rank: call for one in shown for call in one.own.calls if call.turn == found.turn}
    if not rows:
        return None
    absent = tuple(row.rank for row in rows)
    waiting = tuple(rank for rank in there if rank not in absent)
    return Verdict(
        "mismatch", _sentence(rows, waiting, there), _meant(rows, waiting), name, found.turn,
        op_words(rows[0].expected_op), rows[0].expected_nbytes, waiting, absent, where_words(job, absent),
        job.now_at_ns - min(call.launch_at_ns for call in there.values()),
    )  # fmt: skip


def _mark(call: LastCall) -> Mark:
    return Mark(call.turn, call.op, call.nbytes, call.dtype, call.peer, call.origin, call.site)


def _sentence(rows: Sequence[DesyncRow], waiting: Sequence[int], there: Mapping[int, LastCall]) -> str:
    """As in "call #7 of group 0 is broadcast of 32 B on rank 1 at a.py:9, and barrier on ranks 0 and 2 at a.py:8"."""
    row = rows[0]
    own, theirs = (
        f"{op_words(op)}{f' of {amount(nbytes)}' if nbytes else ''}{_detail(row, dtype, root)}"
        for op, nbytes, dtype, root in (
            (row.op, row.nbytes, row.dtype, row.root),
            (row.expected_op, row.expected_nbytes, row.expected_dtype, row.expected_root),
        )
    )
    return (
        f"call #{row.turn} of {group_words(row.group)} is {own} on {named('rank', _alike(rows))}"
        f"{_where(there[row.rank])}, and {theirs} on {named('rank', waiting)}{_where(there[row.expected_rank])}"
    )


def _alike(rows: Sequence[DesyncRow]) -> list[int]:
    """Those that made the same call as the first. What others made instead, their own lines tell."""
    calls = [(one.op, one.nbytes, one.dtype, one.root) for one in rows]
    return [row.rank for row, call in zip(rows, calls, strict=True) if call == calls[0]]


def _where(call: LastCall) -> str:
    """No line of the program issues what a backward does."""
    if call.site is not None or call.bucket_of is None:
        return at_words(call.site)
    return f" in its backward (bucket of {call.bucket_of})"


def _detail(row: DesyncRow, dtype: str, root: int | None) -> str:
    if row.kind == "dtype":
        return f" in {dtype}"
    return f" with root {root}" if row.kind == "root" else ""


def _meant(rows: Sequence[DesyncRow], waiting: Sequence[int]) -> str:
    row, ranks = rows[0], named("rank", _alike(rows))
    return {
        "missing": f"{ranks} left the call of {named('rank', waiting)} out",
        "extra": f"{ranks} made a call there that the others do not make",
        "reordered": "both make the same calls, in different order",
        "size": "every rank must give as many bytes",
        "dtype": "every rank must give the same dtype",
        "root": "every rank must name the same root",
    }.get(row.kind, "their programs call different things there, or in different order")
