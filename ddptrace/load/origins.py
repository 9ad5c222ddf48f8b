"""Where each collective comes from: as its ORIGIN record tells, else as its CALL record alone does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ddptrace.load.rows import FLAGS, NAME, A, D, E, Row
from ddptrace.schema import CallFlag, Origin

NO_GRADIENT: Final = ("int", "uint", "bool")
"""Of what a reducer's C++ reduces in backward, the bitmap of parameters that were used is of such a dtype."""

ORIGINS: Final = frozenset(Origin)


class Source(NamedTuple):
    """As in `Call`."""

    origin: str
    site: str | None
    module: str | None


class Sources:
    """Of one rank's calls. `origins`: its ORIGIN records; `text`: what a string id stands for."""

    def __init__(self, origins: Iterable[Row], text: Callable[[int], str]) -> None:
        self._said = {row[A]: row for row in origins}
        self._text = text

    def of(self, call: Row, op: str, dtype: str) -> Source:
        """`call`: its CALL record."""
        said = self._said.get(call[A])
        if said is None:
            return Source(_alone(call, op, dtype).word, None, None)
        origin = Origin(said[FLAGS]) if said[FLAGS] in ORIGINS else _alone(call, op, dtype)
        return Source(origin.word, self._text(said[NAME]) or None, self._text(said[D]) or None)


def _alone(call: Row, op: str, dtype: str) -> Origin:
    """Of a call without Python below it, in backward, only DDP's own are all-reduces."""
    if call[E]:
        return Origin.HOOK
    if call[FLAGS] & CallFlag.NATIVE and op.startswith("all_reduce"):
        return Origin.UNUSED_PARAMETERS if dtype.startswith(NO_GRADIENT) else Origin.GRADIENTS
    return Origin.PROGRAM
