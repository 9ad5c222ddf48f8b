"""The numbers of one rank by instrument and attributes. All are integers where sums are: the order of adding is no
matter, and nothing is rounded before it is given out."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ddptrace.telemetry.attributes import Value
from ddptrace.telemetry.instruments import INSTRUMENTS, OTHER, Instrument, Kind

Labels = tuple[Value, ...]
"""Values of an instrument's attributes, in its order."""


@dataclass(slots=True)
class Spread:
    """A histogram. `counts`: of the values up to each bound and above the one before, and of those above the last."""

    counts: list[int]
    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, bounds: Sequence[int], value: int) -> None:
        self.counts[bisect_left(bounds, value)] += 1
        self.least = min(self.least, value) if self.count else value
        self.most = max(self.most, value)
        self.count += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Point:
    """One number, in the instrument's integers: `Instrument.per_unit` of them are one unit."""

    labels: Labels
    value: int | float | Spread


class Points:
    """Counters and gauges, and histograms. What was never added to has no point."""

    def __init__(self) -> None:
        self._numbers: dict[Instrument, dict[Labels, int | float]] = {}
        self._spreads: dict[Instrument, dict[Labels, Spread]] = {}

    def add(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        of = self._numbers.setdefault(instrument, {})
        of[labels] = of.get(labels, 0) + value

    def set(self, instrument: Instrument, value: int | float, labels: Labels = ()) -> None:
        self._numbers.setdefault(instrument, {})[labels] = value

    def raise_to(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        """A counter that was counted elsewhere; it never goes down."""
        of = self._numbers.setdefault(instrument, {})
        of[labels] = max(of.get(labels, 0), value)

    def set_only(self, instrument: Instrument, value: int | float, labels: Labels) -> None:
        """Whatever other attributes it had before."""
        self._numbers[instrument] = {labels: value}

    def observe(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        bounds = integer_bounds(instrument)
        of = self._spreads.setdefault(instrument, {})
        spread = of.get(labels)
        if spread is None:
            spread = of[labels] = Spread([0] * (len(bounds) + 1))
        spread.add(bounds, value)

    def all(self) -> Iterator[tuple[Instrument, list[Point]]]:
        """In the table's order, as they are now: what is added later does not change them."""
        for instrument in INSTRUMENTS:
            if instrument.kind is Kind.HISTOGRAM:
                spreads = self._spreads.get(instrument, {})
                found = [Point(labels, _copied(spread)) for labels, spread in spreads.items()]
            else:
                found = [Point(labels, value) for labels, value in self._numbers.get(instrument, {}).items()]
            if found:
                yield instrument, found


class Bounded:
    """The first `most` that it meets are told apart; the rest are all one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._met: set[Labels] = set()

    def __call__(self, labels: Labels) -> Labels:
        if labels in self._met:
            return labels
        if len(self._met) < self._most:
            self._met.add(labels)
            return labels
        return (OTHER,) * len(labels)


@cache
def integer_bounds(instrument: Instrument) -> tuple[int, ...]:
    return tuple(round(bound * instrument.per_unit) for bound in instrument.bounds)


def _copied(spread: Spread) -> Spread:
    made = copy.copy(spread)
    made.counts = list(spread.counts)
    return made
