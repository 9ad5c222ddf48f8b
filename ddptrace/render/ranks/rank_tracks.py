"""Who waited for whom: waits and transfers inside the slices of executions, and who came last, on a track of its own;
and the critical path, on a track above all ranks.

critical path  | rank 1 · forward | rank 1 · backward | transfer · bucket 0 | rank 0 · optimizer |
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow, PathRow
from ddptrace.render.trace.slices import (
    PHASE_COLOURS,
    Slice,
    Track,
    Unit,
    collective_slice,
    lay_out,
    measured,
    met_name,
    nested,
)

ARROW: Final = "last arrival"
WAIT_COLOUR, TRANSFER_COLOUR, LAST_COLOUR = "thread_state_uninterruptible", "rail_load", "yellow"


class MatchOnRank(NamedTuple):
    """One rank's execution of a collective that all of its ranks took part in: it waits from `begin_at_ns` on, and the
    transfer goes from `turn_at_ns` to `end_at_ns`. `arrow`: that which ends where the transfer begins, 0 for none."""

    row: ArrivalRow
    match: MatchRow
    begin_at_ns: int
    turn_at_ns: int
    end_at_ns: int
    arrow: int


class Last(NamedTuple):
    """A collective that this rank came last to; its arrows to the others are numbered from `arrow` on."""

    match: MatchRow
    arrow: int
    arrows: int


def executed(outer: Slice, met: Sequence[MatchOnRank]) -> Unit:
    """An execution, or that of several collectives which carried a bucket together, with what it was: in time order.
    Perfetto takes an arrow to the begin of `outer` for one to the child that begins with it."""
    return nested(outer, [child for one in met for child in _children(one)])


def executed_parts(rows: Sequence[CollectiveRow], met: MatchOnRank | None) -> Iterator[Unit]:
    """One collective, which may be drawn in several parts. The arrow ends in that in which the transfer begins."""
    for row in rows:
        part = collective_slice(row)
        if met is None or row.exec_end_at_ns is None:
            yield (part,)
            continue
        mine = met._replace(begin_at_ns=part.begin_at_ns, end_at_ns=part.end_at_ns)
        yield executed(part, [mine])
        if met.turn_at_ns < part.end_at_ns:
            met = met._replace(turn_at_ns=part.end_at_ns, arrow=0)


def other_units(rows: Sequence[CollectiveRow], met: dict[int, MatchOnRank]) -> list[Unit]:
    """`rows`: parts of one collective follow each other. `met`: by seq."""
    by_seq = itertools.groupby(rows, key=attrgetter("seq"))
    return [unit for seq, parts in by_seq for unit in executed_parts(list(parts), met.get(seq))]


def _children(met: MatchOnRank) -> Iterator[Slice]:
    """None where it is transfer from begin to end, and nobody came after it."""
    waits = met.turn_at_ns > met.begin_at_ns
    if waits:
        yield Slice(_wait_name(met), "peer.wait", met.begin_at_ns, met.turn_at_ns, _wait_args(met), WAIT_COLOUR)
    if met.end_at_ns > met.turn_at_ns and (waits or met.arrow):
        flow = (met.arrow, "f", ARROW) if met.arrow else ()
        args = measured(_transfer_values(met))
        yield Slice("transfer", "peer.transfer", met.turn_at_ns, met.end_at_ns, args, TRANSFER_COLOUR, *flow)


def _wait_name(met: MatchOnRank) -> str:
    return "waits for peers" if met.row.wait_ns is None else f"waits for rank {met.match.last_rank}"


def _wait_args(met: MatchOnRank) -> str:
    """Without a clock in common a wait is what the execution took longer than the shortest one."""
    estimate = "clock-free" if met.row.wait_ns is None else "aligned clocks"
    row, match = met.row, met.match
    return measured(
        [
            ("match", row.match),
            ("wait_ns", row.wait_ns),
            ("free_wait_ns", row.free_wait_ns),
            ("estimate", estimate),
            ("arrived_by", row.arrived_by),
            ("uncertainty_ns", match.uncertainty_ns),
        ]
    )


def _transfer_values(met: MatchOnRank) -> list[tuple[str, object]]:
    row, match = met.row, met.match
    return [
        ("match", row.match),
        ("transfer_ns", row.transfer_ns),
        ("free_transfer_ns", row.free_transfer_ns),
        ("agrees", match.agrees),
        ("busbw_bytes_per_s", match.busbw_bytes_per_s),
    ]


def begin_of(last: Last) -> int:
    """When the last but one had come; where that was the same instant, a moment before, since an arrow must not begin
    when it ends."""
    return (last.match.last_arrival_at_ns or 0) - max(last.match.blame_ns or 0, 1)


def last_slice(last: Last, several_reducers: bool) -> Slice:
    """While all others had arrived. It ends with the arrival, and there Perfetto begins the arrows."""
    match = last.match
    names = ("match", "op", "group", "ordinal", "nbytes", "blame_ns", "skew_ns", "uncertainty_ns")
    args = measured((name, getattr(match, name)) for name in names)
    name = f"last to {met_name(match, several_reducers)}"
    span = begin_of(last), match.last_arrival_at_ns or 0
    return Slice(name, "arrival", *span, args, LAST_COLOUR, last.arrow, "s", ARROW, last.arrows)


# The critical path ----------------------------------------------------------------------------------------------------


def path_tracks(result: Result, zeros: Mapping[int, int]) -> Iterator[Track]:
    """None where its ranks share no zero: `zeros` are what is drawn at 0, by rank."""
    if len({zeros.get(row.rank, 0) for row in result.critical_path}) == 1:
        several = len({row.reducer for row in result.buckets}) > 1
        pieces = (path_slice(row, _match(result, row), several) for row in result.critical_path)
        yield from lay_out("critical path", [(piece,) for piece in pieces])


def path_slice(row: PathRow, match: MatchRow | None, several_reducers: bool) -> Slice:
    name = f"rank {row.rank} · {row.what}" if match is None else f"{row.what} · {met_name(match, several_reducers)}"
    colour = TRANSFER_COLOUR if match is not None else PHASE_COLOURS.get(row.what, "grey")
    args = measured([("step", row.step), ("rank", row.rank), ("what", row.what), ("match", row.match)])
    return Slice(name, "path", row.begin_at_ns, row.end_at_ns, args, colour)


def _match(result: Result, row: PathRow) -> MatchRow | None:
    return None if row.match is None else result.matches[row.match]
