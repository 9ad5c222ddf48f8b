"""Ranks come to one place, each leaves a text there, and all read them. An answer that comes late is taken too:

the rank     asks |~~ SLICE_S + ANSWER_S ~~| looks; waits on |~~~~~~~~| goes on with the answer
a thread     sets its text, checks that all are there, reads them ----^
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

from ddptrace.reducer.bounded_store import (
    ANSWER_S,
    BoundedStore,
    StoreGoneError,
    StoreSilentError,
    answer_of,
    are_set,
)
from ddptrace.reducer.notes import waits_key

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
