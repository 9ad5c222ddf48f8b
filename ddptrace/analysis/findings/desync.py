"""Ranks that call other collectives than the rest: which rank, where, and what the others called there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final

from ddptrace.analysis.collectives.rows import PROGRAM
from ddptrace.analysis.matching.matches import Refused
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.tables.ranks import DesyncRow
from ddptrace.findings import DESYNC, MATCH_REFUSED, RANK_BEHIND, Finding
from ddptrace.schema import line_words
from ddptrace.units import named, size

TOLD: Final = 5
"""At most this many become a finding each."""

AlikeRows = tuple[Sequence[DesyncRow], bool]
"""Rows of one group that one sentence covers; whether those ranks may only have been on their way."""


def refused_findings(refused: Iterable[Refused]) -> Iterator[Finding]:
    """One for each group that cannot be compared."""
    for one in refused:
        called = f"group {one.group}" if one.group else "the unnamed group"
        advice = (
            "Look at where the ranks' programs part." if one.whole else "Record the same whole steps on every rank."
        )
        yield MATCH_REFUSED(
            called,
            f"The collectives of {called} on {named('rank', one.ranks)} are not compared across ranks: {one.reason}."
            f" {advice}",
        )


def desync_findings(ranks: Sequence[RankFacts], rows: Sequence[DesyncRow]) -> list[Finding]:
    """One for what several ranks of a group did alike, in the order of steps."""
    ended = {facts.rank for facts in ranks if facts.clean}
    told = sorted(_alike(rows, ended), key=lambda one: (one[1], _step(one[0][0])))
    shown = [_finding(alike, is_open) for alike, is_open in told[:TOLD]]
    rest = told[TOLD:]
    if rest:
        shown.append(
            DESYNC(
                "run",
                f"Ranks differ at {len(rest)} more calls, which the table desyncs lists. The first difference matters"
                " most.",
                "warning" if rest[0][1] else "error",
            )
        )
    return shown


def _step(row: DesyncRow) -> float:
    return float("inf") if row.step is None else row.step


def _alike(rows: Sequence[DesyncRow], ended: Set[int]) -> Iterator[AlikeRows]:
    """By group, what several ranks did alike. A rank that stopped calling and did not end may be on its way."""
    alike: dict[tuple[object, ...], list[DesyncRow]] = {}
    for row in rows:
        same = (
            row.group,
            row.turn,
            row.expected_rank,
            row.kind,
            row.op,
            row.nbytes,
            row.dtype,
            row.site,
            row.through,
            row.root,
        )
        alike.setdefault((_is_open(row, ended), *same), []).append(row)
    return ((those, _is_open(those[0], ended)) for those in alike.values())


def _is_open(row: DesyncRow, ended: Set[int]) -> bool:
    return not row.op and row.rank not in ended


def _finding(rows: Sequence[DesyncRow], is_open: bool) -> Finding:
    row, ranks = rows[0], named("rank", [row.rank for row in rows])
    where = f"group {row.group}" if row.group else "the unnamed group"
    if row.op:
        return DESYNC(
            where,
            f"{_different(row, ranks, where)}: {_meant(row.kind, ranks, row.expected_rank)}. What follows in this group"
            " is not compared across ranks.",
        )
    if is_open:
        return RANK_BEHIND(
            where,
            f"{_less(row, ranks, where)}. The process died, hangs or was on its way: `ddptrace diagnose` tells which.",
        )
    return DESYNC(
        where,
        f"{_less(row, ranks, where)}: tracing ended there without it, so the ranks that made it found no partner.",
    )


def _less(row: DesyncRow, ranks: str, where: str) -> str:
    verb = "has" if ranks.startswith("rank ") else "have"
    return (
        f"{ranks[0].upper()}{ranks[1:]} {verb} not made call #{row.turn} of {where}, which is"
        f" {_call(row.expected_op, row.expected_nbytes)} on {_expected(row)}"
    )


def _different(row: DesyncRow, ranks: str, where: str) -> str:
    """As in "Call #12 of group 0 is broadcast of 32 B on rank 1 (at a.py:3) and all_reduce of 16 B on rank 0"."""
    own, expected = _call(row.op, row.nbytes), _call(row.expected_op, row.expected_nbytes)
    if row.kind in ("size", "dtype", "root"):
        own, expected = f"{row.op.rstrip('_')} {_what(row, own=True)}", _what(row, own=False)
    step = "" if row.step is None else f", in step {row.step}"
    return (
        f"Call #{row.turn} of {where} is {own} on {ranks}{_at(row.site, row.through, row.origin)} and {expected} on"
        f" {_expected(row)}{step}"
    )


def _expected(row: DesyncRow) -> str:
    return f"rank {row.expected_rank}{_at(row.expected_site, row.expected_through, row.expected_origin)}"


def _meant(kind: str, ranks: str, expected_rank: int) -> str:
    return {
        "missing": f"{ranks} had not made the call of rank {expected_rank} by then",
        "extra": f"only {ranks} had made such a call by then",
        "reordered": "both make the same calls in a different order",
        "order": "their programs make different calls there",
        "size": "every rank must give the same number of bytes",
        "dtype": "every rank must give the same dtype",
        "root": "every rank must name the same root",
    }[kind]


def _what(row: DesyncRow, *, own: bool) -> str:
    if row.kind == "size":
        return f"of {row.nbytes if own else row.expected_nbytes} bytes"
    if row.kind == "dtype":
        return f"of {row.dtype if own else row.expected_dtype}"
    return f"with root {row.root if own else row.expected_root}"


def _call(op: str, nbytes: int | None) -> str:
    return f"{op.rstrip('_')} of {size(nbytes)}" if nbytes else op.rstrip("_")


def _at(site: str | None, through: str | None, origin: str | None) -> str:
    line = line_words(site, through)
    told = [word for word in (f"at {line}" if line else None, origin if origin != PROGRAM else None) if word]
    return f" ({', '.join(told)})" if told else ""
