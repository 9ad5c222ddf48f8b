"""One rank of a benchmark: who it is, what it computes on, and how the ranks' timings become one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError


@dataclass(frozen=True, slots=True)
class Job:
    """`folder`: where this benchmark writes; every rank knows it, on its own host. `voice`: where rank 0 tells how far
    it is."""

    rank: int
    ranks: int
    backend: str
    device: torch.device
    folder: Path
    voice: IO[str]

    @classmethod
    def join(cls, folder: Path, backend: str | None, voice: IO[str]) -> Job:
        """Take this process's place among the ranks that RANK and WORLD_SIZE tell of."""
        _check_place()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = _device(backend)
        backend = backend or ("nccl" if device.type == "cuda" else "gloo")
        dist.init_process_group(backend)
        return cls(dist.get_rank(), dist.get_world_size(), backend, device, folder, voice)

    def say(self, text: str) -> None:
        """Progress, told by rank 0 alone."""
        if self.rank == 0:
            print(text, file=self.voice, flush=True)

    def meet(self) -> None:
        """Return when all ranks are here and their devices have nothing left to do."""
        self.finish()
        dist.barrier()

    def finish(self) -> None:
        """Wait until this rank's device has nothing left to do: a clock read before tells of launches only."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def slowest(self, times_ns: Sequence[int]) -> list[int]:
        """Each time as long as it took the slowest rank."""
        times = torch.tensor(list(times_ns), dtype=torch.int64, device=self.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return times.tolist()

    def gather(self, mine: object) -> list[object]:
        """What every rank has, by rank, on every rank."""
        all_of_them: list[object] = [None] * self.ranks
        dist.all_gather_object(all_of_them, mine)
        return all_of_them


def _check_place() -> None:
    """Raises DdptraceError where the environment tells of no place among ranks: torch would wait for ever in one."""
    rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise DdptraceError(f"RANK is set and {', '.join(missing)} not: start with torchrun, or unset RANK")
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise DdptraceError(f"RANK={rank} is no rank of WORLD_SIZE={ranks}: start with torchrun, or unset RANK")


def _device(backend: str | None) -> torch.device:
    """The GPU of this rank, where each has one. Raises DdptraceError for NCCL without."""
    local, local_ranks = (int(os.environ.get(name, default)) for name, default in _LOCAL)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = 0 if seen == 1 and "CUDA_VISIBLE_DEVICES" in os.environ else local  # a scheduler may show each rank its own
    if backend == "nccl" and own >= seen:
        raise DdptraceError(f"nccl needs a GPU for each rank; {local_ranks} are here, and {seen} GPUs: --backend gloo")
    if backend == "gloo" or own >= seen or (own == local and seen < local_ranks):
        return torch.device("cpu")
    torch.cuda.set_device(own)
    return torch.device("cuda", own)


_LOCAL = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
