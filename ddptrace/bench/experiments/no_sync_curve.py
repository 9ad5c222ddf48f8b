"""A small transformer that learns real text, with one update every n micro-batches. Every n sees the same samples.

micro-batch    0    1    2    3    4    5    6    7
n = 1          u    u    u    u    u    u    u    u      u: gradients synchronised, optimizer steps
n = 4                         u                   u      between them gradients add up on the rank
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ddptrace.bench.job import Job
from ddptrace.bench.strategies import Strategy
from ddptrace.bench.workloads import Gpt
from ddptrace.units import counted

CONTEXT: Final = 64
MICRO_BATCH: Final = 4
HELD_OUT: Final = 32
"""Number of windows of text that no rank trains on."""
LEARNING_RATE: Final = 1e-3


def standard_library() -> Tensor:
    """Return the source of Python's standard library as uint8: real text that every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


class Windows:
    """Pieces of a text by number, shuffled equally on every rank. A target is the next byte."""

    def __init__(self, text: Tensor, device: torch.device) -> None:
        self._text, self._device = text, device
        pieces = (len(text) - 1) // CONTEXT
        self._order = torch.randperm(pieces, generator=torch.Generator().manual_seed(0))

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self._batch(range(HELD_OUT))

    def micro_batch(self, number: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        """Return this rank's micro-batch of this number. Each rank gets another part of the text."""
        first = (number * ranks + rank) * MICRO_BATCH
        return self._batch(range(first + HELD_OUT, first + HELD_OUT + MICRO_BATCH))

    def _batch(self, places: range) -> tuple[Tensor, Tensor]:
        begins = [CONTEXT * int(self._order[self._wrapped(at)]) for at in places]
        pieces = torch.stack([self._text[begin : begin + CONTEXT + 1] for begin in begins]).long().to(self._device)
        return pieces[:, :-1], pieces[:, 1:]

    def _wrapped(self, at: int) -> int:
        """Begin again after the last window, but never with a held-out one."""
        others = len(self._order) - HELD_OUT
        return HELD_OUT + (at - HELD_OUT) % others if at >= HELD_OUT else at


class Accumulating:
    """One model, updated once every `count` micro-batches."""

    def __init__(self, job: Job, strategy: Strategy, windows: Windows, count: int) -> None:
        torch.manual_seed(0)
        self.model = strategy.wrap(Gpt(layers=4, width=192, heads=6, context=CONTEXT).to(job.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._job, self._windows, self._count = job, windows, count
        self._next = 0

    def update(self) -> None:
        """Run `count` micro-batches, and average their gradients over them and over the ranks."""
        for place in range(self._count):
            batch = self._windows.micro_batch(self._next, self._job.rank, self._job.ranks)
            with self._apart(place):
                (self.model(*batch) / self._count).backward()
            self._next += 1
        self.optimizer.step()
        self.optimizer.zero_grad()

    def updates(self, micro_batches: int) -> None:
        """Run as many updates as these micro-batches make. `micro_batches`: a multiple of `count`."""
        for _ in range(micro_batches // self._count):
            self.update()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the mean cross-entropy in nats. It is equal on every rank, like the parameters."""
        return float(self.model.module(*self._windows.held_out()))  # type: ignore[operator] # the wrapped model

    def _apart(self, place: int) -> AbstractContextManager[Any]:
        last = place == self._count - 1
        return nullcontext() if last else self.model.no_sync()  # type: ignore[operator] # both wrappers have it


def curves(
    job: Job, strategy: Strategy, windows: Windows, counts: Sequence[int], points: int, every: int
) -> dict[str, list[float]]:
    """Train with each n. Returns the held-out losses by n: at first, and then `points` times after `every`
    micro-batches of each rank."""
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
