"""The communication hooks to compare: which of them a reducer takes on a backend, what they send, and their error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddptrace.analysis.result import Result
from ddptrace.bench.job import Job
from ddptrace.bench.strategies import REDUCERS
from ddptrace.bench.workloads import Trainee, workload
from ddptrace.errors import DdptraceError
from ddptrace.ops import FACTORS

NONE: Final = "none"
IN_ONE: Final = "none, one bucket"
POWER_SGD_RANK: Final = 4
WHOLE_MB: Final = 2.0**20
"""A cap that makes one bucket."""


@dataclass(frozen=True, slots=True)
class Hooked:
    """A model in training with a hook. `trainee` is None if the reducer refused the hook, and `note` says why."""

    trainee: Trainee | None
    note: str = ""


def hooked(job: Job, name: str, work: str, reducer: str, cap_mb: float) -> Hooked:
    """Train with this hook; in one bucket where stock DDP on Gloo would hang with several. Collective."""
    if name == "quantization" and job.backend == "gloo":
        return Hooked(None, NCCL_ONLY)
    in_one = name == IN_ONE or (name == "PowerSGD" and needs_one_bucket(reducer, job.backend))
    strategy = REDUCERS[reducer](WHOLE_MB if in_one else cap_mb)
    trainee = Trainee(job, workload(work), strategy)
    try:
        register(trainee.model, name)
    except (TypeError, ValueError, DdptraceError) as refusal:  # DDP's own check of a hook raises a TypeError
        return Hooked(None, f"refused: {str(refusal).splitlines()[0]}")
    return Hooked(trainee, HANGS if in_one and name == "PowerSGD" else "")


def needs_one_bucket(reducer: str, backend: str) -> bool:
    """Gloo runs callbacks on few threads, where several that wait for a collective block each other for good.
    `BucketedDataParallel` then sends one bucket after another; stock DDP does not."""
    return reducer == "ddp" and backend == "gloo"


def register(model: nn.Module, name: str) -> None:
    """Put the hook of this name on a wrapped model."""
    made = HOOKS[name]()
    if made is not None:
        model.register_comm_hook(*made)  # type: ignore[operator] # both wrappers have it


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank sends in one step: means over the profiled steps. `nbytes`: through its link, as a ring sends them:
    for an all-reduce twice the tensor's bytes, less its own part. None if an op or a size is not known."""

    calls: float
    nbytes: float | None


def sent(result: Result) -> Sent | None:
    """Return what the ranks of a traced run sent; None if no step was profiled."""
    steps = Counter((row.rank, row.step) for row in result.steps if row.profiled)
    calls = [row for row in result.collectives if not row.part and (row.rank, row.step) in steps]
    if not steps:
        return None
    total = 0.0
    for row in calls:
        if row.nbytes is None or not row.group_size or row.op.rstrip("_") not in FACTORS:
            return Sent(len(calls) / len(steps), None)
        total += row.nbytes * FACTORS[row.op.rstrip("_")](row.group_size)
    return Sent(len(calls) / len(steps), total / len(steps))


def relative_error(job: Job, trainee: Trainee) -> float:
    """Return ‖difference‖ ÷ ‖exact‖ of the gradients after a hooked backward, against the exact mean over the ranks.
    Parameters stay as they are. Collective."""
    exact = _exact(job, trainee)
    trainee.model(*trainee.batch).backward()
    found = [parameter.grad.double() for parameter in trainee.model.parameters() if parameter.grad is not None]
    trainee.optimizer.zero_grad()
    off, whole = (
        torch.stack([part.norm() for part in parts]).norm()
        for parts in ([one - other for one, other in zip(found, exact, strict=True)], exact)
    )
    return float(off / whole)


def coarse_ratio(job: Job, trainee: Trainee) -> float:
    """Return the share of the exact mean gradients' elements that are below fp16's normal numbers but not zero.
    Collective."""
    sizes = torch.cat([mean.flatten() for mean in _exact(job, trainee)]).abs()
    return float(((sizes > 0) & (sizes < torch.finfo(torch.float16).tiny)).double().mean())


def _exact(job: Job, trainee: Trainee) -> list[Tensor]:
    """Return the ranks' own gradients, averaged in float64."""
    with trainee.model.no_sync():  # type: ignore[operator] # both wrappers have it
        trainee.model(*trainee.batch).backward()
    means = []
    for parameter in trainee.model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad.double()
            dist.all_reduce(mean)
            means.append(mean / job.ranks)
    trainee.optimizer.zero_grad()
    return means


Made = tuple[object, Callable[..., Any]] | None


def _power_sgd() -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    return PowerSGDState(None, POWER_SGD_RANK, start_powerSGD_iter=2), powerSGD_hook


def _default(name: str) -> Callable[[], Made]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return lambda: (None, getattr(default_hooks, name))


def _quantization() -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook

    return None, quantization_pertensor_hook


HOOKS: Final[dict[str, Callable[[], Made]]] = {
    NONE: lambda: None,
    IN_ONE: lambda: None,
    "fp16": _default("fp16_compress_hook"),
    "bf16": _default("bf16_compress_hook"),
    "PowerSGD": _power_sgd,
    "quantization": _quantization,
}
NCCL_ONLY: Final = "torch's hook raises an IndexError on Gloo, whose all-gather returns another list than NCCL's"
HANGS: Final = "in one bucket: with several, stock DDP on Gloo hangs with this hook"
