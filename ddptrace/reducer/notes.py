"""Texts that ranks leave in the store for each other, and meetings, where each rank leaves a text and all read them.

All ranks ask one server, so what each rank does once a second takes a few operations, however many ranks there are. A
key that another rank looks for is never removed: removed between its `check` and its `get`, it would leave that `get`,
and with it the whole client, waiting for minutes. An empty text means that nothing is there any more.

Functions that take a `store` run inside a question: see bounded_store.py.
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
"""What a waiting rank looks for: a sentence that ends its wait, "" if there is none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one look at the store."""

    note: str = ""  # of a peer, for the forward that this rank is in
    verdict: str = ""  # the sentence of a `Look`
    is_silent: bool = False  # there was no answer


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the others are, as far as they have said."""

    missing: tuple[int, ...] = ()  # ranks that have not set their key: at most one more than a message names
    elsewhere: str = ""  # a rank that waits for all others, and where


SLICE_S = 1.0
"""Seconds that a rank waits between two looks at the others' texts."""

Texts = list[str] | None
"""None: not all texts are there yet."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Ranks that come to one place: each leaves a text there, and all read them.

    `keys`: by the rank that sets each. `mine`: the text of this rank, None if it has none. `what`: the place, in words.
    `forget`: keys of this rank that nobody reads any more once all ranks have come.
    """

    rank: int
    keys: Mapping[int, str]
    mine: str | None
    what: str
    forget: Sequence[str] = ()

    def texts(self, store: Store, began: float) -> Texts:
        """Return the texts under the keys, None if some are missing. `began`: when the wait began."""
        if self.mine is not None:
            store.set(self.keys[self.rank], self.mine)
        if not are_set(store, self.keys.values(), SLICE_S):
            store.set(waits_key(self.rank), self.what)
            return None
        if time.monotonic() - began > SLICE_S:  # it may have left a text that it waits
            store.set(waits_key(self.rank), "")
        for key in self.forget:
            store.delete_key(key)
        return [text.decode() for text in store.multi_get(list(self.keys.values()))]


def leave(store: Store, forwards: Iterable[int], note: str) -> None:
    for forward in forwards:
        store.set(_key(forward), note)


def waits_key(rank: int) -> str:
    """Return the key under which a rank says where it waits for all others, "" while it does not."""
    return f"waits/{rank}"


def seen(store: Store, forward: int, looks: Iterable[Look]) -> Seen:
    return Seen(text_at(store, _key(forward)), next(filter(None, (look(store) for look in looks)), ""))


def whereabouts(store: Store, keys: Mapping[int, str], ranks: Iterable[int]) -> Whereabouts:
    """Find who is missing. `keys`: the keys waited for, by the rank that sets each."""
    waits = {rank: waits_key(rank) for rank in ranks}
    texts = store.multi_get(list(waits.values())) if store.check(list(waits.values())) else []
    said = (f"rank {rank} waits for {text.decode()}" for rank, text in zip(waits, texts, strict=False) if text)
    return Whereabouts(tuple(islice(_absent(store, list(keys.items())), NAMED_AT_MOST + 1)), next(said, ""))


def text_at(store: Store, key: str) -> str:
    """Return the text under a key, "" if there is none."""
    return store.get(key).decode() if store.check([key]) else ""


def _absent(store: Store, keys: Sequence[tuple[int, str]]) -> Iterator[int]:
    """Yield the ranks whose keys are not set, by halving: of many keys a store only says whether all are there."""
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
    """Wait for all texts and return them; an answer that comes late is taken too.

    the rank     asks |~~ SLICE_S + ANSWER_S ~~| looks; waits on |~~~~~~~~| goes on with the answer
    a thread     sets its text, checks that all are there, reads them ----^

    `look` is called with the start of the wait, and raises to end it.
    """
    began = time.monotonic()
    asked: Future[Texts] | None = None
    while True:
        try:
            asked = asked or store.put(lambda store: meeting.texts(store, began))
            texts = answer_of(asked, SLICE_S + ANSWER_S)
            if texts is not None:
                return texts
            asked = None
        except StoreSilentError:  # the question stays open
            pass
        except StoreGoneError:  # `look` finds the same, and has the message
            asked = None
        look(began)
