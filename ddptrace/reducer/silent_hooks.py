"""A communication hook that sends nothing for a bucket, as in the local steps of local SGD, does so on every rank.

Where it does so on one rank alone, that rank's next collective meets the others' bucket, and the backend ends the
process. So a rank whose hook returns a future that it finished itself, and issued no collective, goes on only when the
others have come past that bucket too:

    rank 0   hook 0: nothing sent | waits for rank 1 . . . . . . . . . gives up: a sentence, and a note
    rank 1   hook 0: all-reduce | hook 1 | ... | waits for bucket 0 . . . . . . looks: the note
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import Future
from torch.distributed.distributed_c10d import Store, _world

from ddptrace.reducer.notes import text_at
from ddptrace.reducer.peers import Peers

ASKED = "silent"
"""Where a rank whose hook sent nothing says in which forward it waits for the others."""


class SilentHooks:
    """Told of each future that a hook returned. `on_their_way`: by bucket, those that were not waited for yet."""

    __slots__ = ("_answered", "_answered_in", "_forward", "_last", "_met", "_peers", "on_their_way")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._forward = self._last = -1  # forward and bucket of the last future
        self.on_their_way: dict[int, Future[Any]] = {}
        self._met: list[str] = []  # the key of the last meeting
        self._answered: set[str] = set()  # in the looks of one forward
        self._answered_in = -1
        peers.looks.append(self._answer)

    def asked(self, bucket: int, future: Future[Any], issued_before: int) -> None:
        """A hook returned this future. Raises DdptraceError where it sent nothing, and others do not come past it."""
        peers = self._peers
        finished_itself = type(future) is torch.futures.Future and future.done()
        if finished_itself and peers.on_host and peers.size > 1 and issued() == issued_before:
            kind = f"silent/{peers.forward}/{bucket}"
            peers.tell(ASKED, str(peers.forward))
            peers.meet(kind, "", f"bucket {bucket} without communication, as its hook left it", forget=self._met)
            self._met = [peers.own_key(kind)]
        self._forward, self._last = peers.forward, bucket
        self.on_their_way[bucket] = future

    def _answer(self, store: Store) -> str:
        """A rank whose own future for a bucket is done, though its hook did send something, does not hold others."""
        if self._forward == self._peers.forward and text_at(store, ASKED) == str(self._forward):
            self._forget_answers(store)
            for bucket in range(self._last + 1):  # several ranks may ask, each for another one
                key, future = self._peers.own_key(f"silent/{self._forward}/{bucket}"), self.on_their_way.get(bucket)
                if key not in self._answered and (future is None or future.done()):
                    store.set(key, "")
                    self._answered.add(key)
        return ""

    def _forget_answers(self, store: Store) -> None:
        """Those of an earlier forward: this rank came to the end of its backward, so all came past its buckets."""
        if self._answered_in != self._forward:
            for key in self._answered:
                store.delete_key(key)
            self._answered.clear()
            self._answered_in = self._forward


def issued() -> int:
    """How many collectives this process has issued, over all groups that count them."""
    count = 0
    for group in list(_world.pg_map):
        try:
            count += group._get_sequence_number_for_group()  # type: ignore[attr-defined] # missing from torch's stubs
        except RuntimeError:  # a backend that does not count
            continue
    return count
