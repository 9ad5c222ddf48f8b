"""What ranks leave in the store for each other. These run inside a question: see bounded_store.py.

All ranks ask one server, so what each of them does once a second takes a few operations, however many ranks there are.
No key that another rank looks for is removed: between a `check` and a `get` it would leave that `get`, and with it the
whole client, waiting for minutes. An empty text means that there is nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from torch.distributed.distributed_c10d import Store

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
