"""Which layers a step leaves out: the same on every rank, without asking anyone.

A dropped layer has no gradients, so its buckets need not travel; but only if no rank sends them. A choice that depends
on nothing but (seed, step, layer) cannot differ between ranks that agree on the seed, and repeats after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError


@dataclass(frozen=True, slots=True)
class LayerDrop:
    """Drops each layer with this probability, independently of the others.

    drop = LayerDrop.agreed(0.2)
    dropped = drop.chosen(step, len(model.module.blocks))
    with model.dropping(model.module.blocks[i] for i in dropped):
        loss = model(inputs, skip=dropped)
    loss.backward()
    """

    probability: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise DdptraceError(
                f"The probability of dropping a layer must be at least 0 and below 1; {self.probability} is not."
            )

    @classmethod
    def agreed(cls, probability: float, group: dist.ProcessGroup | None = None) -> LayerDrop:
        """Return a choice whose seed rank 0 of the group draws from torch's generator. Collective: every rank calls
        it."""
        group = group or dist.group.WORLD
        if group is None:
            raise DdptraceError("There is no process group yet: call torch.distributed.init_process_group first.")
        device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        seed = torch.randint(2**62, (1,)).to(device)
        dist.broadcast(seed, dist.get_global_rank(group, 0), group=group)
        return cls(probability, int(seed))

    def drops(self, step: int, layer: int) -> bool:
        text = f"{self.seed}/{step}/{layer}".encode()
        fraction = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64
        return fraction < self.probability

    def chosen(self, step: int, layers: int) -> Sequence[int]:
        """Return the layers of 0..layers-1 that this step leaves out, ascending."""
        return [layer for layer in range(layers) if self.drops(step, layer)]
