"""What single instruments cost the thread that meets them, from which the share of any step can be added up.

Each is the difference of the same loop before the first trace and in one, best of many: what other programs do can only
add. Collectives go to a backend of torch's own that does nothing, so that the instrument alone is measured. In training
it takes longer, where caches are cold and the backend's thread wants the core: that is in the ratios above.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.job import Job
from ddptrace.bench.traced import recording
from ddptrace.record import Recorder
from ddptrace.render.sheet import Grid
from ddptrace.render.words import duration
from ddptrace.schema import Kind

STEP_NS: Final = 100_000_000
BUCKETS: Final = 25
PARAMETERS: Final = 150
TRIALS: Final = 300
SMALL_NBYTES, STAMPED_NBYTES = 4 << 10, 128 << 10

Loop = Callable[[], float]
"""Meets an instrument PARAMETERS times. Returns how long that took, in ns."""


@dataclass(frozen=True, slots=True)
class Costs:
    """In ns each. `collective`: one that the program issues; `bucket`: one that C++ issues in backward, as stock DDP
    does; either without and with the stamp of its completion. `parameter`: noting when a gradient is ready."""

    record_ns: float
    collective_ns: float
    stamped_collective_ns: float
    bucket_ns: float
    stamped_bucket_ns: float
    parameter_ns: float

    def share(self, bucket_ns: float) -> float:
        """Of a step of STEP_NS with BUCKETS buckets and PARAMETERS gradients."""
        return (BUCKETS * bucket_ns + PARAMETERS * self.parameter_ns) / STEP_NS

    def grid(self) -> Grid:
        rows = (
            ("one record", duration(self.record_ns)),
            ("one collective of the program, completion not stamped", duration(self.collective_ns)),
            ("one collective of the program, completion stamped", duration(self.stamped_collective_ns)),
            ("one bucket of stock DDP, completion not stamped", duration(self.bucket_ns)),
            ("one bucket of stock DDP, completion stamped", duration(self.stamped_bucket_ns)),
            ("one parameter's ready hook", duration(self.parameter_ns)),
        )
        return Grid("What one of each costs", ("instrument", "cost"), rows, __doc__.split("\n\n")[1].replace("\n", " "))

    def words(self) -> str:
        plain, stamped = (100 * self.share(ns) for ns in (self.bucket_ns, self.stamped_bucket_ns))
        return (
            f"Added up, the instruments of a step of {duration(STEP_NS)} with {BUCKETS} buckets of stock DDP and "
            f"{PARAMETERS} parameters take {plain:.2f} % of it without and {stamped:.2f} % with completion times."
        )


def costs(job: Job) -> Costs:
    """Collective: rank 0 measures, the others keep its trace company. To be called before the first trace of the
    process: what that puts into torch's dispatcher stays there."""
    alone = dist.new_group([0], backend="gloo")
    loops = _loops(alone) if job.rank == 0 else []
    plain = [_least(loop) for loop in loops]
    job.meet()
    with recording(job.folder / "runs" / "costs"):
        traced = [_least(loop) for loop in loops]
        job.meet()
    single = [ours - without for ours, without in zip(traced, plain, strict=True)] or [0.0] * 6
    program, stamped, native, stamped_native, many, one = (cost / PARAMETERS for cost in single)
    return Costs(record_ns(), program, stamped, native, stamped_native, many - one)


def record_ns(count: int = 100_000) -> float:
    """Appending one record, the loop around it taken off."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(lambda: Path(folder))
        cost = min(_per_call_ns(lambda: recorder.event(Kind.DONE, 0, 0, 1, 1, 1), count) for _ in range(7))
        recorder.close()
    return cost - min(_per_call_ns(lambda: None, count) for _ in range(7))


def _loops(alone: object) -> list[Loop]:
    """In the order of `Costs`; of stock DDP, with PARAMETERS gradients and with none but one."""
    small, stamped = (_issue(nbytes) for nbytes in (SMALL_NBYTES, STAMPED_NBYTES))
    native = (_Sum(PARAMETERS, partial(_without_frame, issue)) for issue in (small, stamped))
    stock = (DistributedDataParallel(_Sum(count), process_group=alone, bucket_cap_mb=1000) for count in (PARAMETERS, 1))
    return [_program(small), _program(stamped), *map(_backward, (*native, *stock))]


def _issue(nbytes: int) -> Callable[[], object]:
    """Issues a collective that does nothing."""
    from torch._C._distributed_c10d import FakeProcessGroup

    group = dist.ProcessGroup(0, 1)  # type: ignore[call-arg] # the stub knows no group without a store
    backend = FakeProcessGroup._create_internal(0, 1)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return partial(methodcaller("allreduce", [torch.zeros(nbytes // 4)], options), group)


def _without_frame(issue: Callable[[], object]) -> Callable[[Any], None]:
    """A hook of a parameter that issues from the engine's own frame, as C++ does: an iterator over what `append`
    returns, each None, of the Works that `issue` returns."""
    return partial(next, map(deque[object](maxlen=1).append, iter(issue, None)))


def _program(issue: Callable[[], object]) -> Loop:
    return lambda: PARAMETERS * _per_call_ns(lambda: issue(), PARAMETERS)


def _backward(model: nn.Module) -> Loop:
    def backward() -> float:
        loss = model()
        begin = time.perf_counter_ns()
        loss.backward()
        return time.perf_counter_ns() - begin

    return backward


def _least(loop: Loop) -> float:
    return min(loop() for _ in range(TRIALS))


def _per_call_ns(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count


class _Sum(nn.Module):
    """Parameters of one element each, all used once: next to nothing is computed. `hook` makes a hook for each."""

    def __init__(self, count: int, hook: Callable[[], Callable[[Any], None]] | None = None) -> None:
        super().__init__()
        self.ones = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(count))
        if hook is not None:
            for one in self.ones:
                one.register_post_accumulate_grad_hook(hook())

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.ones)).sum()
