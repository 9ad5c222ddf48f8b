"""Rows of `parallelism`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """A way in which ranks share the work of one model."""

    DDP = "ddp"  # DistributedDataParallel, or ddptrace's own reducer
    DATA = "data-parallel"  # gradients are reduced without one of these
    FSDP = "fsdp"
    ZERO = "zero"  # a sharded optimizer: ranks update a part each
    TENSOR = "tensor-parallel"
    PIPELINE = "pipeline-parallel"
    EXPERT = "expert-parallel"
    EMBEDDINGS = "sharded-embeddings"
    INFERENCE = "inference"  # the model is served, not trained


@dataclass(frozen=True, slots=True)
class ParallelismRow:
    """One kind of parallelism that the run shows."""

    kind: str  # ddp, data-parallel, fsdp, zero, tensor-parallel, pipeline-parallel, expert-parallel,
    #   sharded-embeddings or inference
    told_by: str  # what shows it: the reducer, the origins of collectives, or the engine that serves the model
    group_size: int | None  # ranks that share the work, where that is known
    calls: int  # collectives that belong to it, on all ranks
    exposed_ns: int | None  # their share of the steps' exposed communication, all together; None where it is not known
