"""Remote calls in the trace: the calls of a rank, the runs that it did for others, an arrow from each call to its run.

rank 0  remote calls | rpc_sync forward → worker1 · 4.19 MB      |
                      └──▶
rank 1  remote runs        | forward for worker0 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ddptrace.analysis.tables.rpc import RpcRow
from ddptrace.render.trace.lanes import Slice, Track, lay_out
from ddptrace.render.trace.slices import measured
from ddptrace.units import size

COLUMNS: Final = tuple(entry.name for entry in fields(RpcRow))
VALUES: Final = attrgetter(*COLUMNS)


class Numbered(NamedTuple):
    """A row and the number of its arrow, which both its ranks must know."""

    arrow: int
    row: RpcRow


def rpc_tracks(calls: Sequence[Numbered], runs: Sequence[Numbered]) -> Iterator[Track]:
    """`calls` are those that a rank made, `runs` those that it served."""
    yield from lay_out(
        "remote calls", [(call_slice(numbered),) for numbered in calls if numbered.row.launch_at_ns is not None]
    )
    yield from lay_out(
        "remote runs", [(run_slice(numbered),) for numbered in runs if numbered.row.run_start_at_ns is not None]
    )


def call_slice(numbered: Numbered) -> Slice:
    """Until its result was there; where none was seen, until the host could go on."""
    row = numbered.row
    begin = row.launch_at_ns or 0
    end = next((at for at in (row.done_at_ns, row.issued_at_ns) if at is not None), begin)
    sized = "" if row.nbytes_out is None else f" · {size(row.nbytes_out)}"
    name = f"{row.op} {row.function} → {row.callee}{sized}"
    return Slice(name, "rpc", begin, end, measured(columns(row)), colour(row), *arrow(numbered, "s"))


def run_slice(numbered: Numbered) -> Slice:
    row = numbered.row
    begin, end = row.run_start_at_ns or 0, row.run_end_at_ns or 0
    name = f"{row.function} for {row.caller or 'an untraced worker'}"
    return Slice(name, "rpc.run", begin, end, measured(columns(row)), colour(row), *arrow(numbered, "f"))


def arrow(numbered: Numbered, phase: str) -> tuple[int, str]:
    """The arrow's number and which end this is; (0, "") where one of its ends was not seen."""
    whole = numbered.row.launch_at_ns is not None and numbered.row.run_start_at_ns is not None
    return (numbered.arrow, phase) if whole else (0, "")


def colour(row: RpcRow) -> str:
    return "terrible" if row.failed else "grey" if row.internal else "rail_response"


def columns(row: RpcRow) -> Iterator[tuple[str, Any]]:
    return zip(COLUMNS, VALUES(row), strict=True)
