"""A process group's store, asked so that nobody waits for an answer longer than he said he would.

A store's own calls have no deadline: while the process that serves it is stopped, its clients read from a socket that
stays silent; and one that serves many ranks is slow at times. So each question goes to a thread of its own, and one
that is still open is not asked over again: who wants its answer comes back for it.

    the rank     asks |~~ within_s ~~| no answer; waits for its bucket; asks |~~~| no answer ...
    a thread     check --------------------------------------------------------------- it goes on, or stays there
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

ANSWER_S: Final = 1.0
SHORTEST_PAUSE_S: Final = 1e-4
LONGEST_PAUSE_S: Final = 0.02


class StoreGoneError(Exception):
    """Its process has ended: no answer will come."""


class StoreSilentError(Exception):
    """No answer came in time: its process may be stopped, and may go on."""


class BoundedStore:
    """`ask` it anything that a store can be asked."""

    __slots__ = ("_open", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self._open: Future[Any] | None = None  # the last question

    def ask(self, question: Callable[[Store], T], within_s: float = ANSWER_S) -> T:
        """What `question(store)` returns. Raises StoreSilentError or StoreGoneError where there is no answer."""
        return answer_of(self.put(question, within_s), within_s)

    @property
    def is_busy(self) -> bool:
        """With the last question: another one would wait."""
        return self._open is not None and not self._open.done()

    def put(self, question: Callable[[Store], T], within_s: float = ANSWER_S) -> Future[T]:
        """Ask, and go on: `answer_of` waits for the answer, as often as one likes. Raises StoreSilentError while the
        question before is open."""
        if self._open is not None and wait([self._open], within_s).not_done:
            raise StoreSilentError
        answer: Future[T] = Future()
        self._open = answer
        threading.Thread(target=_answer, args=(question, self.store, answer), daemon=True).start()
        return answer


def answer_of(answer: Future[T], within_s: float) -> T:
    """Raises StoreSilentError where it is not there in time, and StoreGoneError where it never will be."""
    try:
        return answer.result(within_s)
    except TimeoutError:
        raise StoreSilentError from None
    except RuntimeError as error:  # what torch raises where a connection is lost
        raise StoreGoneError from error


def are_set(store: Store, keys: Iterable[str], within_s: float) -> bool:
    """Wait until all keys are there: whether they are in time. To be called inside a question.

    The store's own wait would print a warning each time that it ends without them.
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
