"""The numbers of one rank, by instrument and attributes.

Sums are integers: the order of adding does not matter, and nothing is rounded before it is exported.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ddptrace.telemetry.attributes import Value
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, OTHER, Instrument, Kind

Labels = tuple[Value, ...]
"""Values of an instrument's attributes, in its order."""


@dataclass(slots=True)
class Spread:
    """A histogram. `counts` has one number per bound, of the values up to it and above the bound before, and one for
    the values above the last bound."""

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
    """One number, in the instrument's integers, `Instrument.per_unit` to the unit."""

    labels: Labels
    value: int | float | Spread


class Points:
    """The counters, gauges and histograms of one rank. An instrument without a value has no point."""

    def __init__(self) -> None:
        self._numbers: dict[Instrument, dict[Labels, int | float]] = {}
        self._spreads: dict[Instrument, dict[Labels, Spread]] = {}

    def add(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        numbers = self._numbers.setdefault(instrument, {})
        numbers[labels] = numbers.get(labels, 0) + value

    def set(self, instrument: Instrument, value: int | float, labels: Labels = ()) -> None:
        self._numbers.setdefault(instrument, {})[labels] = value

    def raise_to(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        """Set a counter that somebody else counts; it never goes down."""
        numbers = self._numbers.setdefault(instrument, {})
        numbers[labels] = max(numbers.get(labels, 0), value)

    def set_only(self, instrument: Instrument, value: int | float, labels: Labels) -> None:
        """Set the instrument's only point; one with other attributes is removed."""
        self._numbers[instrument] = {labels: value}

    def observe(self, instrument: Instrument, value: int, labels: Labels = ()) -> None:
        bounds = integer_bounds(instrument)
        spreads = self._spreads.setdefault(instrument, {})
        spread = spreads.get(labels)
        if spread is None:
            spread = spreads[labels] = Spread([0] * (len(bounds) + 1))
        spread.add(bounds, value)

    def all(self) -> Iterator[tuple[Instrument, list[Point]]]:
        """Yield all points as of now, in the order of `INSTRUMENTS`; later changes do not affect them."""
        for instrument in INSTRUMENTS:
            if instrument.kind is Kind.HISTOGRAM:
                spreads = self._spreads.get(instrument, {})
                found = [Point(labels, _copied(spread)) for labels, spread in spreads.items()]
            else:
                found = [Point(labels, value) for labels, value in self._numbers.get(instrument, {}).items()]
            if found:
                yield instrument, found


class Bounded:
    """Passes the first `most` different labels through, and replaces all others by `OTHER`."""

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
