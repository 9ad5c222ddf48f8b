"""Texts that ranks leave in the store for each other, and meetings, where each rank leaves a text and all read them.

All ranks ask one server, so what each rank does once a second takes a few operations, however many ranks there are. A
key that another rank looks for is never removed: removed between its `check` and its `get`, it would leave that `get`,
and with it the whole client, waiting for minutes. An empty text means that nothing is there any more.

A store may not answer. A store's own calls have no deadline: while the process that serves it is stopped, its clients
read from a silent socket; and a server of many ranks is slow at times. So each question goes to a separate thread, and
an open question is not asked again: whoever wants its answer comes back for it.

    the rank     asks |~~ within_s ~~| no answer; waits for its bucket; asks |~~~| no answer ...
    a thread     check --------------------------------------------------------------- it goes on, or stays there

Functions that take a `store` run inside a question: see `BoundedStore`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from torch.distributed.distributed_c10d import Store

from ddptrace.reducer.misuse import NAMED_AT_MOST

Look = Callable[[Store], str]
"""What a waiting rank looks for: a sentence that ends its wait, "" if there is none."""

T = TypeVar("T")

ANSWER_S: Final = 1.0
SHORTEST_PAUSE_S: Final = 1e-4
LONGEST_PAUSE_S: Final = 0.02


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


class StoreGoneError(Exception):
    """The process that serves the store has ended: no answer will come."""


class StoreSilentError(Exception):
    """No answer came in time: the process that serves the store may be stopped, and may go on."""


class BoundedStore:
    """Put questions to a store: functions that take it."""

    __slots__ = ("_open", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self._open: Future[Any] | None = None  # the last question

    def ask(self, question: Callable[[Store], T], within_s: float = ANSWER_S) -> T:
        """Return what `question(store)` returns. Raises StoreSilentError or StoreGoneError if there is no answer."""
        return answer_of(self.put(question, within_s), within_s)

    @property
    def is_busy(self) -> bool:
        """Whether the last question is open: another one would wait for it."""
        return self._open is not None and not self._open.done()

    def put(self, question: Callable[[Store], T], within_s: float = ANSWER_S) -> Future[T]:
        """Ask and go on: `answer_of` waits for the answer, any number of times. Raises StoreSilentError while the
        previous question is open."""
        if self._open is not None and wait([self._open], within_s).not_done:
            raise StoreSilentError
        answer: Future[T] = Future()
        self._open = answer
        threading.Thread(target=_answer, args=(question, self.store, answer), daemon=True).start()
        return answer


def answer_of(answer: Future[T], within_s: float) -> T:
    """Wait for an answer. Raises StoreSilentError if it does not come in time, StoreGoneError if it never will."""
    try:
        return answer.result(within_s)
    except TimeoutError:
        raise StoreSilentError from None
    except RuntimeError as error:  # what torch raises if a connection is lost
        raise StoreGoneError from error


def are_set(store: Store, keys: Iterable[str], within_s: float) -> bool:
    """Wait until all keys are there; return whether they came in time. Call it inside a question.

    The store's own wait would print a warning each time it ends without them.
    """
    wanted, end, pause_s = list(keys), time.monotonic() + within_s, SHORTEST_PAUSE_S
    while not store.check(wanted):
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return True


def _answer(question: Callable[[Store], T], store: Store, answer: Future[T]) -> None:
    try:
        answer.set_result(question(store))
    except Exception as error:  # raised where it was asked
        answer.set_exception(error)
