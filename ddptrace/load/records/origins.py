"""Where each collective comes from, and to whom: as its ORIGIN record tells, else as its CALL record alone does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ddptrace.load.records.fields import FLAGS, NAME, A, D, E, Row
from ddptrace.schema import UNKNOWN_ORIGIN, CallFlag, Origin

NO_GRADIENT: Final = ("int", "uint", "bool")
"""Of what a reducer's C++ reduces in backward, the bitmap of parameters that were used is of such a dtype."""

ORIGINS: Final = frozenset(Origin)


class Source(NamedTuple):
    """As in `Call`."""

    origin: str | None
    site: str | None
    module: str | None
    peer: int | None


class Sources:
    """Of one rank's calls. `origins`: its ORIGIN records; `text`: what a string id stands for; `ranks`: global ranks of
    each process group, in the group's order."""

    def __init__(self, origins: Iterable[Row], text: Callable[[int], str], ranks: Mapping[str, Sequence[int]]) -> None:
        self._said = {row[A]: row for row in origins}
        self._text = text
        self._ranks = ranks

    def of(self, call: Row, op: str, dtype: str) -> Source:
        """`call`: its CALL record."""
        said = self._said.get(call[A])
        if said is None:
            return Source(_alone(call, op, dtype).word, None, None, None)
        origin = Origin(said[FLAGS]) if said[FLAGS] in ORIGINS else _alone(call, op, dtype)
        is_unknown = said[FLAGS] == UNKNOWN_ORIGIN and origin is Origin.PROGRAM
        peer = self._global(self._text(call[D]), said[E] - 1)
        word = None if is_unknown else origin.word
        return Source(word, self._text(said[NAME]) or None, self._text(said[D]) or None, peer)

    def _global(self, group: str, rank: int) -> int | None:
        ranks = self._ranks.get(group, ())
        return ranks[rank] if 0 <= rank < len(ranks) else None


def _alone(call: Row, op: str, dtype: str) -> Origin:
    """Of a call without Python below it, in backward, only DDP's own are all-reduces."""
    if call[E]:
        return Origin.HOOK
    if call[FLAGS] & CallFlag.NATIVE and op.startswith("all_reduce"):
        return Origin.UNUSED_PARAMETERS if dtype.startswith(NO_GRADIENT) else Origin.GRADIENTS
    return Origin.PROGRAM
