"""Process groups that work at once: how they lie over the ranks, and one step of all-reduces in all of them.

pairs   p groups of two ranks each, no rank in two of them: i with i + half, so that pairs cross hosts
same    p groups over the same two ranks, the first and the one half of all ranks after it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from ddptrace.bench.job import Job

SHAPES: Final = ("pairs", "same")
MODES: Final = ("sync", "async")
INTERFACES: Final = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`groups` at once. `mode`: "sync" waits for each all-reduce before the next, "async" launches all and then waits.
    `threads`: worker threads of each Gloo group; None leaves the backend's own choice."""

    shape: str
    mode: str
    groups: int
    threads: int | None = None

    @property
    def name(self) -> str:
        most = "" if self.threads is None else f"-threads-{self.threads}"
        return f"{self.shape}-{self.mode}-{self.groups}{most}"

    def members(self, ranks: int) -> list[tuple[int, int]]:
        half = ranks // 2
        return [(at, at + half) if self.shape == "pairs" else (0, half) for at in range(self.groups)]


class Floor:
    """The groups of a job and their tensors, each made once. All ranks must ask for the same in the same order."""

    def __init__(self, job: Job, nbytes: int, calls: int) -> None:
        self._job, self._calls, self._elements = job, calls, nbytes // 4
        self._groups: dict[tuple[Any, ...], Any] = {}
        self._tensors: dict[tuple[int, int], torch.Tensor] = {}

    def step(self, arrangement: Arrangement) -> Callable[[], None]:
        """Return `calls` all-reduces in each group of this rank; a rank without a group does nothing. Collective."""
        groups = self._of(arrangement)
        mine = [at for at, pair in enumerate(arrangement.members(self._job.ranks)) if self._job.rank in pair]
        turns = [(groups[at], self._tensor(at, call)) for call in range(self._calls) for at in mine]
        return (lambda: _one_by_one(turns)) if arrangement.mode == "sync" else (lambda: _all_at_once(turns))

    def threads(self, arrangement: Arrangement) -> int:
        """Return the threads of each group, by its backend; 1 for a backend with a stream. Same on every rank."""
        mine = [group for group in self._of(arrangement) if group is not dist.GroupMember.NON_GROUP_MEMBER]
        told = [threads_of(group) for group in mine]
        return max(int(str(each)) for each in self._job.gather(max(told, default=1)))

    def _of(self, arrangement: Arrangement) -> list[Any]:
        pairs = arrangement.members(self._job.ranks)
        return [self._group(at, pair, arrangement.threads) for at, pair in enumerate(pairs)]

    def _group(self, at: int, pair: tuple[int, int], threads: int | None) -> Any:
        key = (at, pair, threads)
        if key not in self._groups:
            backend = None if threads is None else backend_with(threads)
            self._groups[key] = dist.new_group(list(pair), backend=backend)
        return self._groups[key]

    def _tensor(self, at: int, call: int) -> torch.Tensor:
        if (at, call) not in self._tensors:
            self._tensors[at, call] = torch.zeros(self._elements, device=self._job.device)
        return self._tensors[at, call]


def _one_by_one(turns: Sequence[tuple[Any, torch.Tensor]]) -> None:
    for group, tensor in turns:
        dist.all_reduce(tensor, group=group)


def _all_at_once(turns: Sequence[tuple[Any, torch.Tensor]]) -> None:
    works = [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in turns]
    for work in works:
        work.wait()


def backend_with(threads: int) -> str:
    """Register Gloo with this number of worker threads in each group, and return its name as a backend.

    `new_group` passes no options to Gloo, but it makes any registered backend.
    """
    name = f"gloo_{threads}_threads"
    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(
            name, lambda store, rank, size, timeout: _gloo(store, rank, size, timeout, threads), devices=["cpu"]
        )
    return name


def _gloo(store: Any, rank: int, size: int, timeout: Any, threads: int) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout, options._threads, options._devices = timeout, threads, _devices(gloo)
    return gloo(store, rank, size, options)


def _devices(gloo: Any) -> list[Any]:
    """Return the devices that torch makes without options."""
    names = [name for name in os.environ.get(INTERFACES, "").split(",") if name]
    return [gloo.create_device(interface=name) for name in names] or [gloo.create_default_device()]


def threads_of(group: Any) -> int:
    try:
        return int(group._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return 1
