"""The side table of what NCCL itself says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NcclRow:
    """All collectives of one function and size that NCCL carried out alike."""

    function: str  # NCCL's name: AllReduce, AllGather, …
    nbytes: int  # as NCCL counts: of an all-gather and a reduce-scatter one rank's part
    algorithm: str | None  # Ring, Tree, NVLS, …; None where no log tells
    protocol: str | None  # LL, LL128, Simple; None where no log tells
    channels: int | None  # that it used; None where no log tells
    chosen: int  # lines of the logs that say so
    timed: int  # collectives of all ranks that NCCL Inspector timed; it does not tell algorithms apart
    ranks: int | None  # of the communicator; None where it was not timed, or communicators differ
    mean_ns: float | None  # time of one, as NCCL Inspector measured it
    algbw_bytes_per_s: float | None  # mean, as NCCL Inspector has it
    busbw_bytes_per_s: float | None  # mean, as NCCL Inspector has it
    timing_source: str | None  # what timed them: kernel_gpu, kernel_cpu or collective_cpu
    run_busbw_bytes_per_s: float | None  # mean of these collectives in the given run; None without one
