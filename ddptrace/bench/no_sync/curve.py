"""A small transformer that learns real text, updated once every n micro-batches, whatever n is fed the same samples.

micro-batch    0    1    2    3    4    5    6    7
n = 1          u    u    u    u    u    u    u    u      u: gradients synchronised, optimizer steps
n = 4                         u                   u      before it they stay on the rank and add up
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ddptrace.bench.models import Gpt
from ddptrace.render.words import counted

if TYPE_CHECKING:
    from ddptrace.bench.job import Job
    from ddptrace.bench.training import Strategy

CONTEXT: Final = 64
MICRO_BATCH: Final = 4
HELD_OUT: Final = 32
"""Windows of text that no rank trains on."""
LEARNING_RATE: Final = 1e-3


def standard_library() -> Tensor:
    """The source of Python's own standard library as uint8: real text that every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


class Windows:
    """Pieces of a text by number, shuffled, the same everywhere; a target is the byte that follows."""

    def __init__(self, text: Tensor, device: torch.device) -> None:
        self._text, self._device = text, device
        pieces = (len(text) - 1) // CONTEXT
        self._order = torch.randperm(pieces, generator=torch.Generator().manual_seed(0))

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self._batch(range(HELD_OUT))

    def micro_batch(self, number: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """The micro-batch of this number for this rank: another part of the text for each."""
        first = (number * ranks + rank) * MICRO_BATCH
        return self._batch(range(first + HELD_OUT, first + HELD_OUT + MICRO_BATCH))

    def _batch(self, places: range) -> tuple[Tensor, Tensor]:
        begins = [CONTEXT * int(self._order[HELD_OUT + (at - HELD_OUT) % self._others if at >= HELD_OUT else at])
                  for at in places]  # fmt: skip
        pieces = torch.stack([self._text[begin : begin + CONTEXT + 1] for begin in begins]).long().to(self._device)
        return pieces[:, :-1], pieces[:, 1:]

    @property
    def _others(self) -> int:
        return len(self._order) - HELD_OUT


class Accumulating:
    """One model, updated once every `count` micro-batches."""

    def __init__(self, job: Job, strategy: Strategy, windows: Windows, count: int) -> None:
        torch.manual_seed(0)
        self.model = strategy.wrap(Gpt(layers=4, width=192, heads=6, context=CONTEXT).to(job.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._job, self._windows, self._count = job, windows, count
        self._next = 0

    def update(self) -> None:
        """`count` micro-batches, the gradients of which are averaged over them and over the ranks."""
        for place in range(self._count):
            batch = self._windows.micro_batch(self._next, self._job.rank, self._job.ranks)
            with self._apart(place):
                (self.model(*batch) / self._count).backward()
            self._next += 1
        self.optimizer.step()
        self.optimizer.zero_grad()

    def updates(self, micro_batches: int) -> None:
        """As many as these micro-batches make: a multiple of `count`."""
        for _ in range(micro_batches // self._count):
            self.update()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Mean cross-entropy in nats; the parameters are the same on every rank, and so is this."""
        return float(self.model.module(*self._windows.held_out()))  # type: ignore[operator] # the wrapped model

    def _apart(self, place: int) -> AbstractContextManager[Any]:
        last = place == self._count - 1
        return nullcontext() if last else self.model.no_sync()  # type: ignore[operator] # both wrappers have it


def curves(
    job: Job, strategy: Strategy, windows: Windows, counts: Sequence[int], points: int, every: int
) -> dict[str, list[float]]:
    """Held-out loss by n: at the beginning, and after each of `points` times `every` micro-batches of each rank."""
    found = {}
    for count in counts:
        learner = Accumulating(job, strategy, windows, count)
        losses = [learner.held_out_loss()]
        for _ in range(points):
            learner.updates(every)
            losses.append(learner.held_out_loss())
        found[str(count)] = losses
        job.say(f"trained with {counted(count, 'micro-batch', 'micro-batches')} an update: loss {losses[-1]:.3f}")
    return found
