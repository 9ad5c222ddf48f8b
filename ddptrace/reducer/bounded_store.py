"""A process group's store with a deadline for each answer.

A store's own calls have no deadline: while the process that serves it is stopped, its clients read from a silent
socket; and a server of many ranks is slow at times. So each question goes to a separate thread, and an open question is
not asked again: whoever wants its answer comes back for it.

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
