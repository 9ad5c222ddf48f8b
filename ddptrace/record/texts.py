"""Texts by number, each written out before the first record that names it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Final

from ddptrace.record.thin import TOLD
from ddptrace.schema import GUARD, STRING, TEXT_PER_RECORD, Kind

MOST_NAMES: Final = 1 << 14
"""So many different names are remembered. A program that goes on making some (of groups, of threads) has the rest of
them told as one."""
TOO_MANY_NAMES: Final = "(one of too many names)"

UNPAIRED: Final = ("send", "recv")
"""Ops whose names begin so are not issued by all ranks of a group."""


class Texts:
    """`ids` of the names written so far. `write(shape, *fields)` appends a record, and says whether it has."""

    def __init__(self, write: Callable[..., bool]) -> None:
        self.ids: dict[str, int] = {"": 0}
        self._numbers: dict[str, int] = {"": 0}  # also of names that there was no room to write out
        self._write = write
        self._lock = threading.RLock()  # a signal's handler may come here while its thread holds it
        self._told = itertools.count(TOLD)

    def add(self, name: str) -> int:
        """The id of a name that may be new. One that could not be written out is, whenever it is named again."""
        with self._lock:
            if name not in self._numbers and len(self._numbers) >= MOST_NAMES:
                name = TOO_MANY_NAMES
            if name in self.ids:
                return self.ids[name]
            number = self._numbers.setdefault(name, len(self._numbers))
        if self._write_out(number, name):
            self.ids[name] = number
        return number

    def tell(self, text: str) -> int:
        """Write out what one record alone will name, as a description is, and forget it: its id."""
        number = next(self._told)
        self._write_out(number, text)
        return number

    def unpaired(self) -> list[int]:
        """Ids of the ops that are sends and receives."""
        return [number for name, number in self.ids.copy().items() if name.startswith(UNPAIRED)]

    def _write_out(self, number: int, text: str) -> bool:
        """Whether all of it was written."""
        data = text.encode("utf-8", "replace")
        for chunk in range(len(data) // TEXT_PER_RECORD + 1):
            part = data[chunk * TEXT_PER_RECORD : (chunk + 1) * TEXT_PER_RECORD]
            if not self._write(STRING, Kind.STRING, len(part), chunk, number, part, GUARD):
                return False
        return True
