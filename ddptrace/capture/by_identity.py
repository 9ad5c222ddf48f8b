"""Maps and sets of the program's objects, by identity. Their hash and comparison are the program's code, which may
raise, change with the object (as torchmetrics' does with each update), or be missing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(Generic[K, V]):
    """Maps objects to values, and keeps no object alive. Raises TypeError for a key that takes no weak reference."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ReferenceType[K], V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """Yield the living keys, in the order in which they came; others may come and go meanwhile."""
        for reference, _ in list(self._entries.values()):
            key = reference()
            if key is not None:
                yield key

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get(self, key: K) -> V | None:
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def __setitem__(self, key: K, value: V) -> None:
        entries, number = self._entries, id(key)

        def forget(reference: weakref.ReferenceType[K]) -> None:
            if number in entries and entries[number][0] is reference:
                del entries[number]

        entries[number] = weakref.ref(key, forget), value

    def pop(self, key: K) -> V | None:
        """Remove a key, and return its value; None if it is not there."""
        value = self.get(key)
        if value is not None:
            del self._entries[id(key)]
        return value


class IdentitySet(Generic[K]):
    """A set of objects that keeps none of them alive."""

    def __init__(self) -> None:
        self._keys: IdentityMap[K, bool] = IdentityMap()

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __contains__(self, key: K) -> bool:
        return key in self._keys

    def add(self, key: K) -> None:
        self._keys[key] = True
