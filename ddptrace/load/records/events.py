"""One rank's records on the run's time, kind by kind, with their texts: what every reader of records begins with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddptrace.load.records.clock import Clock
from ddptrace.load.records.fields import NAME, Row
from ddptrace.record import Records
from ddptrace.schema import Kind


class RankEvents:
    """The EVENT records of one rank, with `begin` and `end` since the run's zero. Kinds that a newer minor version has
    added are there, too, and nobody asks for them."""

    def __init__(
        self, records: Records, zero_unix_ns: int | None, *, apart_ns: int = 0, until_ns: int | None = None
    ) -> None:
        """Put a rank's records on the run's time.

        Args:
            records: What was read of the rank's files.
            zero_unix_ns: The run's zero; None: the rank's first record.
            apart_ns: How far the rank's clock is ahead, which is taken off all instants.
            until_ns: Last instant of the records to keep; None: keep all.
        """
        self.clock = Clock.of(records.events, zero_unix_ns)
        self.shift_ns = self.clock.shift_ns - apart_ns
        events = self.clock.near(records.events)
        events["begin"] += self.shift_ns
        events["end"] += self.shift_ns
        if until_ns is not None:
            events = events[np.maximum(events["begin"], events["end"]) <= until_ns]
        self.events = events
        self._strings = records.strings

    def of(self, *kinds: Kind) -> NDArray[np.void]:
        """The records of these kinds, in the order in which they were written."""
        found: NDArray[np.void] = self.events[np.isin(self.events["kind"], kinds)]
        return found

    def rows(self, *kinds: Kind) -> list[Row]:
        """The same as tuples."""
        rows: list[Row] = self.of(*kinds).tolist()
        return rows

    def text(self, number: int) -> str:
        """What a string id stands for; "" for 0, and a placeholder for a text that was lost."""
        return self._strings.get(number, f"lost name {number}" if number else "")

    def described(self, rows: Iterable[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Yield each record with the JSON object that its text holds; one whose text was lost is passed over."""
        for row in rows:
            with suppress(ValueError, RecursionError):
                content = json.loads(self.text(row[NAME]))
                if isinstance(content, dict):
                    yield row, content
