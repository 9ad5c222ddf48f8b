"""What a user asks of a benchmark by name or number, refused in one sentence where it is none."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ddptrace.errors import DdptraceError

NO_NAMES: Final[Mapping[str, float]] = {}


def known(kind: str, asked: Iterable[str], names: Collection[str]) -> None:
    """Raises DdptraceError for the first that is none of `names`."""
    unknown = next((name for name in asked if name not in names), None)
    if unknown is not None:
        raise DdptraceError(f"no {kind} is called {unknown!r}; there are: {', '.join(names)}")


def only_one(ranks: Sequence[int]) -> None:
    """Raises DdptraceError for several numbers of ranks, where a benchmark compares other things."""
    if len(ranks) > 1:
        raise DdptraceError(
            f"this benchmark runs on one number of ranks, and {ranks} are several: run it once for each"
        )


def caps(asked: Sequence[str], named: Mapping[str, float] = NO_NAMES) -> dict[str, float]:
    """MiB by what was typed. `named`: caps that have a name. Raises DdptraceError for what is no cap."""
    found = {cap: named[cap] if cap in named else _number(cap) for cap in asked}
    if not found or not all(0 < mib < math.inf for mib in found.values()):
        names = f", {' or '.join(named)}" if named else ""
        raise DdptraceError(
            f"a cap is a number of MiB above 0{names}, and {', '.join(asked)} are not all such; try 1,5,25"
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
