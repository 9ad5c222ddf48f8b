"""What ranks leave in the store for each other. These run inside a question: see bounded_store.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

Look = Callable[[Store], str]
"""What a rank that waits looks for: a sentence that ends the wait, "" where there is none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at the store brought."""

    note: str = ""  # a peer's, on the forward that this rank is in
    verdict: str = ""  # of the looks: a whole sentence
    missing: tuple[int, ...] = ()  # ranks that have not set what is waited for
    elsewhere: str = ""  # a rank that waits for all the others, and where
    is_silent: bool = False  # there was no answer


def leave(store: Store, forwards: Iterable[int], note: str) -> None:
    for forward in forwards:
        store.set(_key(forward), note)


def waits_key(rank: int) -> str:
    """Where a rank says what it has all ranks come to."""
    return f"waits/{rank}"


def seen(store: Store, forward: int, looks: Iterable[Look], keys: Mapping[int, str], ranks: Iterable[int]) -> Seen:
    """`keys`: what is waited for, by the rank that sets it."""
    note = store.get(_key(forward)).decode() if store.check([_key(forward)]) else ""
    verdict = next(filter(None, (look(store) for look in looks)), "")
    missing = tuple(rank for rank, key in keys.items() if not store.check([key]))
    waiting = (rank for rank in ranks if store.check([waits_key(rank)]))
    elsewhere = next((f"rank {rank} waits for {store.get(waits_key(rank)).decode()}" for rank in waiting), "")
    return Seen(note, verdict, missing, elsewhere)


def _key(forward: int) -> str:
    return f"failed/{forward}"
