"""A few numbers that the ranks compare at the end of a backward, behind the buckets: are we in the same step?

Gradients of two different steps have the same shapes, so their mean is taken without a word. It happens when one rank
skipped a batch, or caught an exception and went on:

    rank 0   forward 7 | backward 7 | forward 8 | backward 8
    rank 1   forward 7 | (raised)   | forward 8 | backward 8      the pulse says 7 here and 8 there: all ranks stop
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError
from ddptrace.reducer.drops import DropAgreement
from ddptrace.reducer.misuse import DROPS_DIFFER
from ddptrace.reducer.peers import Peers

EVERY_ON_DEVICE = 32
"""Backwards per pulse where reading it makes the host wait for the device, which must stay rare. On CPU it is each."""


class Pulse:
    """Sent with `send` after the last bucket, when the processor has nothing else to do, and read with `read`.

    At the start of a backward it would take a moment of the computation on every rank.
    """

    __slots__ = ("_device", "_drops", "_every", "_peers", "_sent")

    def __init__(self, peers: Peers, drops: DropAgreement, device: torch.device) -> None:
        self._peers, self._drops, self._device = peers, drops, device
        self._every = 1 if device.type == "cpu" else EVERY_ON_DEVICE
        self._sent: tuple[dist.Work, torch.Tensor] | None = None

    def send(self, backward: int, *, wants_replan: bool) -> None:
        if backward % self._every:
            return
        left_out, forward, number = self._drops.checksum, self._peers.forward, self._peers.number
        numbers = [forward, -forward, left_out, -left_out, number, -number, int(wants_replan)]
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
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
            raise DdptraceError(
                f"Ranks are not in the same step: one is in forward {-first}, another in forward {last} and rank "
                f"{self._peers.me} in {self._peers.forward}; gradients of different steps were mixed. A rank ran a "
                "forward without a backward, or went on after an exception: do so on every rank or on none."
            )
        if most != -least:
            raise DdptraceError(DROPS_DIFFER)
        return bool(wants_replan)
