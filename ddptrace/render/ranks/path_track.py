"""The critical path as a track of its own, above all ranks: what the iterations really waited for, piece by piece.

critical path  | rank 1 · forward | rank 1 · backward | transfer · bucket 0 | rank 0 · optimizer |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import MatchRow, PathRow
from ddptrace.render.ranks.trace import TRANSFER_COLOUR
from ddptrace.render.trace.lanes import Slice, Track, lay_out
from ddptrace.render.trace.slices import PHASE_COLOURS, measured, met_name


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
