"""One rank of a benchmark: its place, its device, what it runs on, and how the ranks' timings become one."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from ddptrace.engine import cores
from ddptrace.errors import DdptraceError

LOCAL = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


@dataclass(frozen=True, slots=True)
class Job:
    """`folder`: where this benchmark writes, on each rank's own host. `voice`: where rank 0 prints progress."""

    rank: int
    ranks: int
    backend: str
    device: torch.device
    folder: Path
    voice: IO[str]

    @classmethod
    def join(cls, folder: Path, backend: str | None, voice: IO[str]) -> Job:
        """Take the place that RANK and WORLD_SIZE name.

        Raises: DdptraceError if they name none, or if NCCL is asked for without a GPU for each rank.
        """
        _check_place()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = _device(backend)
        backend = backend or ("nccl" if device.type == "cuda" else "gloo")
        dist.init_process_group(backend)
        return cls(dist.get_rank(), dist.get_world_size(), backend, device, folder, voice)

    def say(self, text: str) -> None:
        """Print progress, on rank 0 alone."""
        if self.rank == 0:
            print(text, file=self.voice, flush=True)

    def meet(self) -> None:
        """Return when all ranks are here and their devices have nothing left to do."""
        self.finish()
        dist.barrier()

    def finish(self) -> None:
        """Wait until this rank's device has nothing left to do: a clock read earlier would time launches only."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def slowest(self, times_ns: Sequence[int]) -> list[int]:
        """Return each time in ns as the slowest rank took it. Collective."""
        times = torch.tensor(list(times_ns), dtype=torch.int64, device=self.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return times.tolist()

    def gather(self, mine: object) -> list[object]:
        """Return what each rank passed, by rank, on every rank. Collective."""
        all_of_them: list[object] = [None] * self.ranks
        dist.all_gather_object(all_of_them, mine)
        return all_of_them


def _check_place() -> None:
    """Raise DdptraceError if the environment names no place among ranks, where torch would wait forever."""
    rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise DdptraceError(f"RANK is set and {', '.join(missing)} not: start with torchrun, or unset RANK")
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise DdptraceError(f"RANK={rank} is no rank of WORLD_SIZE={ranks}: start with torchrun, or unset RANK")


def _device(backend: str | None) -> torch.device:
    """Return this rank's GPU, or the CPU if ranks have none. Raises: DdptraceError for NCCL without a GPU."""
    local, local_ranks = (int(os.environ.get(name, default)) for name, default in LOCAL)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = 0 if seen == 1 and "CUDA_VISIBLE_DEVICES" in os.environ else local  # a scheduler may show each rank its own
    if backend == "nccl" and own >= seen:
        raise DdptraceError(
            f"nccl needs a GPU for each rank; here are {local_ranks} ranks and {seen} GPUs: --backend gloo"
        )
    if backend == "gloo" or own >= seen or (own == local and seen < local_ranks):
        return torch.device("cpu")
    torch.cuda.set_device(own)
    return torch.device("cuda", own)


def setup_of(job: Job) -> dict[str, str]:
    """Return what a benchmark ran on, in words for a reader. Collective."""
    hosts = len(set(job.gather(socket.gethostname())))
    return {
        "ranks": f"{job.ranks} on {hosts} host{'s' if hosts > 1 else ''}",
        "backend": job.backend,
        "device": device_name(job.device),
        "torch": version("torch"),
    }


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the CPU's architecture, cores and threads."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"CPU ({platform.machine()}, {cores()} cores, OMP_NUM_THREADS={threads})"
