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

from ddptrace.reducer.peers import Peers


class SilentHooks:
    """Told of each future that a hook returned. `on_their_way`: by bucket, those that were not waited for yet."""

    __slots__ = ("_forward", "_last", "_met", "_peers", "on_their_way")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._forward = self._last = -1  # forward and bucket of the last future
        self.on_their_way: dict[int, Future[Any]] = {}
        self._met = ""
        peers.looks.append(self._answer)

    def asked(self, bucket: int, future: Future[Any], issued_before: int) -> None:
        """A hook returned this future. Raises DdptraceError where it sent nothing, and others do not come past it."""
        peers = self._peers
        finished_itself = type(future) is torch.futures.Future and future.done()
        if finished_itself and peers.on_host and peers.size > 1 and issued() == issued_before:
            kind = f"silent/{peers.forward}/{bucket}"
            peers.tell(f"silent/{peers.forward}", str(bucket))
            peers.meet(kind, "", f"bucket {bucket} without communication, as its hook left it", forget=self._met)
            self._met = kind
        self._forward, self._last = peers.forward, bucket
        self.on_their_way[bucket] = future

    def _answer(self, store: Store) -> str:
        """A rank whose own future for that bucket is done, though its hook did send something, does not hold others."""
        key = f"silent/{self._peers.forward}"
        if self._forward == self._peers.forward and store.check([key]):
            for bucket in range(int(store.get(key)), self._last + 1):  # those behind it will be asked for next
                future = self.on_their_way.get(bucket)
                if future is None or future.done():
                    store.set(f"{key}/{bucket}/{self._peers.rank}", "")
        return ""


def issued() -> int:
    """How many collectives this process has issued, over all groups that count them."""
    count = 0
    for group in list(_world.pg_map):
        try:
            count += group._get_sequence_number_for_group()  # type: ignore[attr-defined] # missing from torch's stubs
        except RuntimeError:  # a backend that does not count
            continue
    return count
