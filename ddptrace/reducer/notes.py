"""What ranks leave in the store for each other. These run inside a question: see bounded_store.py.

All ranks ask one server, so what each of them does once a second takes a few operations, however many ranks there are.
No key that another rank looks for is removed: between a `check` and a `get` it would leave that `get`, and with it the
whole client, waiting for minutes. An empty text means that there is nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

from torch.distributed.distributed_c10d import Store

from ddptrace.reducer.bounded_store import (
    ANSWER_S,
    BoundedStore,
    StoreGoneError,
    StoreSilentError,
    answer_of,
    are_set,
)
from ddptrace.reducer.misuse import NAMED_AT_MOST

Look = Callable[[Store], str]
"""What a rank that waits looks for: a sentence that ends the wait, "" where there is none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at the store brought."""

    note: str = ""  # a peer's, on the forward that this rank is in
    verdict: str = ""  # of the looks: a whole sentence
    is_silent: bool = False  # there was no answer


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the others are, as far as they said."""

    missing: tuple[int, ...] = ()  # ranks that have not set what is waited for: one more than are named, at most
    elsewhere: str = ""  # a rank that waits for all the others, and where


SLICE_S = 1.0
"""How long a rank waits between two looks at what the others say."""

Texts = list[str] | None
"""None: not all are there yet."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """`keys`: by the rank that sets each. `mine`: what this rank says, None where it says nothing. `what`: the place,
    in words. `forget`: keys of this rank that nobody asks for any more once all have come."""

    rank: int
    keys: Mapping[int, str]
    mine: str | None
    what: str
    forget: Sequence[str] = ()

    def texts(self, store: Store, began: float) -> Texts:
        """Those under the keys. To be called inside a question; `began`: when the wait did."""
        if self.mine is not None:
            store.set(self.keys[self.rank], self.mine)
        if not are_set(store, self.keys.values(), SLICE_S):
            store.set(waits_key(self.rank), self.what)
            return None
        if time.monotonic() - began > SLICE_S:  # it may have said that it waits
            store.set(waits_key(self.rank), "")
        for key in self.forget:
            store.delete_key(key)
        return [text.decode() for text in store.multi_get(list(self.keys.values()))]


def leave(store: Store, forwards: Iterable[int], note: str) -> None:
    for forward in forwards:
        store.set(_key(forward), note)


def waits_key(rank: int) -> str:
    """Where a rank says what it has all ranks come to, "" while it does not wait for that."""
    return f"waits/{rank}"


def seen(store: Store, forward: int, looks: Iterable[Look]) -> Seen:
    return Seen(text_at(store, _key(forward)), next(filter(None, (look(store) for look in looks)), ""))


def whereabouts(store: Store, keys: Mapping[int, str], ranks: Iterable[int]) -> Whereabouts:
    """`keys`: what is waited for, by the rank that sets it."""
    waits = {rank: waits_key(rank) for rank in ranks}
    texts = store.multi_get(list(waits.values())) if store.check(list(waits.values())) else []
    said = (f"rank {rank} waits for {text.decode()}" for rank, text in zip(waits, texts, strict=False) if text)
    return Whereabouts(tuple(islice(_absent(store, list(keys.items())), NAMED_AT_MOST + 1)), next(said, ""))


def text_at(store: Store, key: str) -> str:
    """What is there, "" where nothing is."""
    return store.get(key).decode() if store.check([key]) else ""


def _absent(store: Store, keys: Sequence[tuple[int, str]]) -> Iterator[int]:
    """Ranks whose keys are not set, by halves: a store tells of many keys at once only whether all are there."""
    if not keys or store.check([key for _, key in keys]):
        return
    if len(keys) == 1:
        yield keys[0][0]
        return
    half = len(keys) // 2
    yield from _absent(store, keys[:half])
    yield from _absent(store, keys[half:])


def _key(forward: int) -> str:
    return f"failed/{forward}"


def hold(meeting: Meeting, store: BoundedStore, look: Callable[[float], None]) -> list[str]:
    """The texts, when all are there. `look`: is called with the start of the wait, and raises to end it."""
    began = time.monotonic()
    asked: Future[Texts] | None = None
    while True:
        try:
            asked = asked or store.put(lambda store: meeting.texts(store, began))
            texts = answer_of(asked, SLICE_S + ANSWER_S)
            if texts is not None:
                return texts
            asked = None
        except StoreSilentError:  # what was asked stays asked
            pass
        except StoreGoneError:  # the look finds the same, and knows what to say
            asked = None
        look(began)
