"""Do all ranks drop the same layers in this backward? Asked before a bucket leaves, where layers are dropped."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from torch.distributed.distributed_c10d import Store

from ddptrace.errors import DdptraceError
from ddptrace.reducer.misuse import DROPS_DIFFER
from ddptrace.reducer.notes import text_at
from ddptrace.reducer.peers import Peers

SAID = "dropped"


class DropAgreement:
    """`checksum`: of the parameters that this rank leaves out of its backward, 0 where it leaves out none."""

    __slots__ = ("_forward", "_met", "_peers", "checksum")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.checksum = 0
        self._forward = -1  # that of the checksum
        self._met: list[str] = []  # the key of the last meeting
        peers.looks.append(self._difference)

    def agree(self, indices: Iterable[int]) -> None:
        """Return when all ranks leave the same parameters out of this backward; at once where this one leaves out none.

        To be called before a bucket is sent: a backend may end the process where ranks send different ones. Raises
        DdptraceError where ranks differ: here on one that drops, in its wait for a bucket on one that does not.
        """
        dropped = sorted(indices)
        self.checksum = zlib.crc32(repr(dropped).encode()) if dropped else 0
        self._forward = self._peers.forward
        if not dropped:
            return
        kind = f"dropping/{self._forward}"
        said = self._peers.meet(kind, str(self.checksum), "the comparison of what is dropped", forget=self._met)
        if set(map(int, said)) != {self.checksum}:
            raise DdptraceError(DROPS_DIFFER)
        self._met = [self._peers.own_key(kind)]

    def _difference(self, store: Store) -> str:
        """A rank that waits looks whether another drops other layers in this forward, and says what it drops itself.

        One key for all: where it tells a rank nothing new, that rank's own text tells the next.
        """
        if self._forward != self._peers.forward:  # its backward has not begun
            return ""
        said = text_at(store, SAID).split()
        if self.checksum:
            store.set(SAID, f"{self._forward} {self.checksum}")
        differs = said and int(said[0]) == self._forward and int(said[1]) != self.checksum
        return DROPS_DIFFER if differs else ""
