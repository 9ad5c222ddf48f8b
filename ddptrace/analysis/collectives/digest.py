"""Collectives in short, for a reader: those that are alike are taken together, over ranks and steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import harmonic_mean
from typing import Final

from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.load.tables import Identity
from ddptrace.schema import Evidence

SIZES_APART_MAX: Final = 8
"""So many sizes of one op in one group are told apart; more are taken together by their number of digits."""

Kind = tuple[str, str, int | None, int, str | None]
"""Op, group, ranks in the group, bytes or the number of their digits, and origin."""


@dataclass(frozen=True, slots=True)
class CollectiveDigest:
    """Collectives that are alike. `calls` and `exposed_ns` are means over what `Collectives.per` names."""

    op: str
    group: str
    group_size: int | None
    nbytes_min: int | None
    nbytes_max: int | None
    calls: float
    mean_ns: int | None  # of one execution, where it is known
    hidden_ratio: float | None  # hidden / comm
    exposed_ns: int | None  # charged
    algbw_bytes_per_s: float | None  # all their bytes over all their time, like busbw
    busbw_bytes_per_s: float | None
    evidence: Evidence | None  # the weakest
    identity: Identity  # the weakest
    origin: str | None  # None where a foreign trace does not tell
    sites: tuple[str, ...]  # the program's lines that they come from, the most frequent first
    modules: tuple[str, ...]  # likewise
    through: tuple[str, ...]  # likewise, lines of the libraries that issued them


@dataclass(frozen=True, slots=True)
class Collectives:
    """The most exposed first. `per`: "step" where the typical steps have any, else "rank"; `count`: so many of them."""

    per: str
    count: int
    kinds: tuple[CollectiveDigest, ...]


def collectives(result: Result) -> Collectives:
    """Those of the typical steps; where these have none, all."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    rows: list[CollectiveRow] = [row for row in result.collectives if (row.rank, row.step) in wanted]
    per, count = "step", len(steps)
    if not rows:
        rows = list(result.collectives)
        per, count = "rank", len({row.rank for row in rows})
    found = [_collective(alike, count) for alike in _alike(rows)]
    found.sort(
        key=lambda kind: (-(kind.exposed_ns or 0), -(kind.mean_ns or 0) * kind.calls, kind.op, kind.nbytes_max or 0)
    )
    return Collectives(per, count, tuple(found))


def _alike(rows: Sequence[CollectiveRow]) -> Iterable[list[CollectiveRow]]:
    sizes: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        sizes[row.op, row.group].add(_alike_size(row.nbytes or 0, 3))
    kinds: defaultdict[Kind, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        apart = len(sizes[row.op, row.group]) <= SIZES_APART_MAX
        size = _alike_size(row.nbytes or 0, 3 if apart else 0)
        kinds[row.op, row.group, row.group_size, size, row.origin].append(row)
    return kinds.values()


def _alike_size(nbytes: int, figures: int) -> int:
    """The same number for sizes that read the same with so many figures; with 0, for those of so many digits."""
    digits = len(str(nbytes))
    return round(nbytes, figures - digits) if figures else digits


def _collective(rows: Sequence[CollectiveRow], count: int) -> CollectiveDigest:
    """A call that ran in several steps has a row in each: it counts once, and all of its time."""
    first, sizes = rows[0], [row.nbytes for row in rows if row.nbytes is not None]
    comm = [row.comm_ns for row in rows if row.comm_ns is not None]
    calls = len({(row.rank, row.seq) for row in rows})
    measured = len({(row.rank, row.seq) for row in rows if row.comm_ns is not None})
    charged = [row.exposed_charged_ns for row in rows if row.exposed_charged_ns is not None]
    hidden = sum(row.hidden_ns or 0 for row in rows)
    return CollectiveDigest(
        first.op,
        first.group,
        first.group_size,
        min(sizes, default=None),
        max(sizes, default=None),
        calls=calls / count,
        mean_ns=round(sum(comm) / measured) if measured else None,
        hidden_ratio=hidden / sum(comm) if sum(comm) else None,
        exposed_ns=round(sum(charged) / count) if charged else None,
        algbw_bytes_per_s=_rate((row.algbw_bytes_per_s, row.nbytes) for row in rows),
        busbw_bytes_per_s=_rate((row.busbw_bytes_per_s, row.nbytes) for row in rows),
        evidence=weakest(row.evidence for row in rows),
        identity=weakest_identity(row.identity for row in rows),
        origin=first.origin,
        sites=_frequent(row.site for row in rows),
        modules=_frequent(row.module for row in rows),
        through=_frequent(row.through for row in rows),
    )


def _frequent(names: Iterable[str | None]) -> tuple[str, ...]:
    counts = Counter(name for name in names if name is not None)
    return tuple(name for name, _ in counts.most_common())


def weakest_identity(identities: Iterable[Identity]) -> Identity:
    return max(identities, key=list(Identity).index)


def _rate(rates: Iterable[tuple[float | None, int | None]]) -> float | None:
    """All bytes over all time, from the rate and bytes of each."""
    known = [(rate, nbytes) for rate, nbytes in rates if rate and nbytes]
    return harmonic_mean([rate for rate, _ in known], [nbytes for _, nbytes in known]) if known else None
