"""A few numbers that the ranks compare at the end of a backward, behind the buckets: are we in the same step?

Gradients of two different steps, or models, may have the same shapes, so their mean is taken without a word:

    rank 0   forward 7 | backward 7 | forward 8 | backward 8
    rank 1   forward 7 | (raised)   | forward 8 | backward 8      the pulse says 7 here and 8 there: all ranks stop

While every backward is plain the ranks know it before they send anything (see backward_agreement.py), and a pulse every
now and then is enough. Even these few bytes take about half a millisecond of two processors' time.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError
from ddptrace.reducer.backward_agreement import BackwardAgreement
from ddptrace.reducer.misuse import DROPS_DIFFER, not_in_one_step
from ddptrace.reducer.peers import Peers

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
