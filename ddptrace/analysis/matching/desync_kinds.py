"""What became of a call that differs from the others': told by what follows it, and by what always followed before.

others    x a b c d
missing   a b c d          the rank left x out
extra     y x a b c        it alone called y
reordered a x b c d
order     y a b c d        something else in its place; "size", "dtype" or "root" where it is the same but for that

Ranks that block on such a call show no more: then what always came next in the calls before stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ddptrace.analysis.matching.calls import LOOK, Codes, Mark

REMEMBERED: Final = 10_000
"""Calls, counted back, in which a habit is looked for."""

Numbers = Sequence[int]


@dataclass(frozen=True, slots=True)
class Story:
    """One telling of what happened: leave out the first so many calls on either side, and the rest is the same."""

    kind: str
    theirs: int
    mine: int

    def fits(self, theirs: Numbers, mine: Numbers) -> tuple[int, bool]:
        """How many calls it explains, at most `LOOK`; and whether there is none that speaks against it."""
        bonus = self.mine if self.kind == "reordered" else 0
        count, pairs = 0, list(zip(theirs[self.theirs :], mine[self.mine :], strict=False))[:LOOK]
        while count < len(pairs) and pairs[count][0] == pairs[count][1]:
            count += 1
        return min(bonus + count, LOOK), count == len(pairs)


class History:
    """The calls before, on which all agree."""

    def __init__(self, agreed: Codes) -> None:
        self._agreed = agreed[-REMEMBERED:]
        self._usual = set(np.unique(agreed).tolist())

    def is_usual(self, code: int) -> bool:
        return code in self._usual

    def next(self, tail: Numbers) -> list[int]:
        """Twice `LOOK` calls that come next if all goes on as before, as far as it tells: of two guesses the shorter
        one would seem to be the worse. `tail`: calls after those agreed on."""
        found: list[int] = []
        while len(found) < 2 * LOOK and (more := self._next([*tail, *found])):
            found += more
        return found[: 2 * LOOK]

    def _next(self, tail: Numbers) -> list[int]:
        """What followed when the same calls had been made, the longest such stretch and then the latest; nothing where
        the last of them is new."""
        so_far = [*self._agreed[-LOOK:].tolist(), *tail][-LOOK:]
        for length in range(min(len(so_far), len(self._agreed) - 1), 0, -1):
            seen = sliding_window_view(self._agreed[:-1], length)
            found = np.flatnonzero((seen == so_far[-length:]).all(axis=1))
            if len(found):
                after = int(found[-1]) + length
                return [int(code) for code in self._agreed[after : after + 2 * LOOK]]
        return []


@dataclass(frozen=True, slots=True)
class Side:
    """What a rank called at the turn and after it."""

    mark: Mark
    codes: Numbers


def kind_of(own: Side, others: Side, history: History) -> str:
    """One word of `DesyncRow.kind`."""
    guessed = [(*side.codes, *history.next(side.codes)) if len(side.codes) <= LOOK else side.codes
               for side in (others, own)]  # fmt: skip
    best, score = "", (0, False, 0)
    for story in _stories(others.codes, own.codes):
        known, unbroken = story.fits(others.codes, own.codes)
        likely, _ = story.fits(*guessed)
        if max(known, likely) and (known, unbroken, likely) > score:
            best, score = story.kind, (known, unbroken, likely)
    if best in ("", "order") and _same_place(own.mark, others.mark):
        return _in_what(own.mark, others.mark)
    return best or _by_habit(own, others, history)


def _stories(theirs: Numbers, mine: Numbers) -> Iterator[Story]:
    """Likeliest first, where nothing else decides."""
    for count in range(1, LOOK + 1):
        yield Story("missing", count, 0)
        yield Story("extra", 0, count)
    for width in range(2, LOOK + 1):
        if len(theirs) >= width <= len(mine) and sorted(theirs[:width]) == sorted(mine[:width]):
            yield Story("reordered", width, width)
            break
    yield Story("order", 1, 1)


def _same_place(own: Mark, other: Mark) -> bool:
    """As far as both are known."""
    pairs = (own.origin, other.origin), (own.site, other.site)
    return own.op == other.op and all(a == b for a, b in pairs if a is not None and b is not None)


def _in_what(own: Mark, other: Mark) -> str:
    if own.dtype != other.dtype and own.dtype and other.dtype:
        return "dtype"
    return "size" if own.key[1] != other.key[1] else "root"


def _by_habit(own: Side, others: Side, history: History) -> str:
    mine, theirs = history.is_usual(own.codes[0]), history.is_usual(others.codes[0])
    if mine == theirs:
        return "order"
    return "missing" if mine else "extra"
