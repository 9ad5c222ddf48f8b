"""Is this backward the same on all ranks? Asked before a bucket leaves, and only of a backward that is not plain.

A plain backward follows one forward and drops nothing. While all of every rank's are plain, no rank is in another step
than the rest: whoever ran a forward without a backward, or went on after an exception, is in one that is not plain.

    rank 0   forward | backward   | forward |         | forward | (2 forwards) asks; learns that rank 1 had 1
    rank 1   forward | backward   | forward | backward, waits for bucket 0, looks: rank 0 had 2. Nothing was mixed

Programs whose backwards all follow several forwards are sound too; once ranks agreed that theirs is one, `is_plain` is
over, and the pulse compares the ranks from then on.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ddptrace.errors import DdptraceError
from ddptrace.reducer.misuse import DROPS_DIFFER, not_in_one_step
from ddptrace.reducer.notes import text_at
from ddptrace.reducer.peers import Peers

SAID: Final = "backward"


@dataclass(frozen=True, slots=True)
class Kind:
    """What has to be the same. `forward`: the last one. `forwards`: how many since the backward before. `dropped`:
    checksum of the parameters that are left out, 0 where none is."""

    forward: int
    forwards: int
    dropped: int

    @classmethod
    def read(cls, text: str) -> Kind:
        return cls(*map(int, text.split()))

    def __str__(self) -> str:
        return f"{self.forward} {self.forwards} {self.dropped}"


class BackwardAgreement:
    """`kind`: of this rank's last backward. `is_plain`: no backward so far had other than one forward."""

    __slots__ = ("_backward", "_forward_before", "_met", "_peers", "is_plain", "kind")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.kind, self.is_plain = Kind(0, 1, 0), True
        self._backward = -1  # that of the kind
        self._forward_before = 0
        self._met: list[str] = []  # the key of the last meeting
        peers.looks.append(self._difference)

    def agree(self, backward: int, left_out: Collection[int]) -> None:
        """Return when this backward is the same on all ranks; at once where it is plain here.

        To be called before a bucket is sent: a backend may end the process where ranks send different ones. Raises
        DdptraceError where ranks differ: here on one that asks, in its wait for a bucket on one that does not.
        """
        forward = self._peers.forward
        forwards, self._forward_before = forward - self._forward_before, forward
        dropped = zlib.crc32(repr(sorted(left_out)).encode()) if left_out else 0
        self.kind, self._backward = Kind(forward, forwards, dropped), backward
        if not self._is_asked:
            return
        self._peers.tell(SAID, self._said)  # before any rank looks
        kind = f"backward/{backward}"
        said = self._peers.meet(kind, str(self.kind), "the comparison of their backwards", forget=self._met)
        sentence = next(filter(None, map(self._unlike, map(Kind.read, said))), "")
        if sentence:
            raise DdptraceError(sentence)
        self._met = [self._peers.own_key(kind)]
        self.is_plain &= forwards == 1

    @property
    def _is_asked(self) -> bool:
        return bool(self.kind.dropped) or (self.is_plain and self.kind.forwards != 1)

    @property
    def _said(self) -> str:
        return f"{self._backward} {self.kind}"

    def _unlike(self, other: Kind) -> str:
        if other == self.kind:
            return ""
        if other.forward == self.kind.forward:
            return DROPS_DIFFER
        first, last = sorted((other.forward, self.kind.forward))
        return not_in_one_step(first, last, self._peers.me, self.kind.forward)

    def _difference(self, store: Store) -> str:
        """A rank that waits looks whether another said something else of this backward, and says what its own is.

        One key for all is enough: whoever read it and raises tells those that are in the same forward.
        """
        text = text_at(store, SAID)
        backward, _, said = text.partition(" ")
        sentence = self._unlike(Kind.read(said)) if backward == str(self._backward) else ""
        if sentence:
            store.set(SAID, self._said)
        elif self._is_asked:
            store.compare_set(SAID, text, self._said)  # not over what another rank said since, and then raised
        return sentence


SELDOM: Final = 32
"""Backwards per pulse where they are plain, and where reading a pulse makes the host wait for a device."""


class Pulse:
    """Sent with `send` after the last bucket, when the processor has nothing else to do, and read with `read`.

    At the start of a backward it would take a moment of the computation on every rank.
    """

    __slots__ = ("_alike", "_device", "_peers", "_sent")

    def __init__(self, peers: Peers, alike: BackwardAgreement, device: torch.device) -> None:
        self._peers, self._alike, self._device = peers, alike, device
        self._sent: tuple[dist.Work, torch.Tensor] | None = None

    def _every(self, has_hook: bool) -> int:
        """Backwards per pulse. Over a group that reducers share, ranks may be in different ones, and a hook need not
        wait for all ranks."""
        is_sure = self._alike.is_plain and not has_hook and not self._peers.are_shared
        return SELDOM if is_sure or not self._peers.on_host else 1

    def send(self, backward: int, *, wants_replan: bool, has_hook: bool) -> None:
        if backward % self._every(has_hook):
            return
        kind, number = self._alike.kind, self._peers.number
        compared = [kind.forward, -kind.forward, kind.dropped, -kind.dropped, number, -number, int(wants_replan)]
        tensor = torch.tensor(compared, dtype=torch.int64, device=self._device)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._peers.group, async_op=True)
        self._sent = (work, tensor)

    def read(self) -> bool:
        """Whether some rank wished for a new plan. Raises DdptraceError on every rank when they are not in one step."""
        if self._sent is None:
            return False
        (work, tensor), self._sent = self._sent, None
        self._peers.wait(work, "the ranks' comparison of their steps")
        last, first, most, least, newest, oldest, wants_replan = tensor.tolist()
        if newest != -oldest:
            raise DdptraceError(
                f"Ranks run different models in this step: of those over this group, one is in number {-oldest}, "
                f"another in number {newest} and rank {self._peers.me} in number {self._peers.number}; gradients of "
                "different models were mixed. Use the models in the same order on every rank."
            )
        if last != -first:
            raise DdptraceError(not_in_one_step(-first, last, self._peers.me, self._alike.kind.forward))
        if most != -least:
            raise DdptraceError(DROPS_DIFFER)
        return bool(wants_replan)
