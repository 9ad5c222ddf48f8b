"""What single instruments cost the thread that calls them, and what exporting costs beside the steps.

The sum of the instruments is their share of a step. Exporting makes and sends spans in another process; what counts is
also how many spans a process can send.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.job import Job
from ddptrace.bench.traced import recording
from ddptrace.capture.collectives import compiled
from ddptrace.capture.collectives.completions import Completions
from ddptrace.capture.collectives.tap import silent_group
from ddptrace.errors import DdptraceError
from ddptrace.record import Recorder
from ddptrace.render.sheet import Grid
from ddptrace.schema import Kind
from ddptrace.units import duration

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

STEP_NS: Final = 100_000_000
BUCKETS: Final = 25
PARAMETERS: Final = 150
TRIALS: Final = 300
SMALL_NBYTES, STAMPED_NBYTES = 4 << 10, 128 << 10

UNITS: Final = 24
COLLECTIVES_OF_UNIT: Final = 3
UNIT_TRIALS: Final = 40

SMALL, LARGE, SPLIT, UNSTAMPED, WHOLE, ONE = "small", "large", "split", "unstamped", "whole", "one"
TRACES: Final = ((SMALL, LARGE), (SPLIT,), (UNSTAMPED,), (WHOLE,), (ONE,))
"""The loops of each trace. A loop of stock DDP is alone in its trace."""

NOTE: Final = (
    "Each is the difference between the same loop inside a trace and before the first trace, the best of many, since "
    "other programs can only add time. The program's collectives go to a backend of torch that does nothing, buckets "
    "to Gloo on one rank. In training they cost more, since caches are cold and the backend's thread needs the core: "
    "the ratios above include that."
)
Loop = Callable[[], float]
"""Calls instruments. Returns the time in ns."""

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
BEGUN_S: Final = 3.0
"""Time until the exporting process has started, which each job pays once and not in each step."""
SUSTAINED_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Each in ns. `collective`: one that the program issues. `bucket`: one of a single stock DDP. `stamped`: with the
    time of its completion. `parameter`: recording when a gradient is ready. `unit`: a step of one `fully_shard`, which
    gathers its parameters twice and reduces its gradients."""

    record_ns: float
    collective_ns: float
    stamped_collective_ns: float
    bucket_ns: float
    stamped_bucket_ns: float
    parameter_ns: float
    unit_ns: float

    def share(self, bucket_ns: float) -> float:
        """Return the share of a step of STEP_NS with BUCKETS buckets and PARAMETERS gradients."""
        return (BUCKETS * bucket_ns + PARAMETERS * self.parameter_ns) / STEP_NS

    def grid(self) -> Grid:
        rows = (
            ("one record", duration(self.record_ns)),
            ("one collective of the program, completion not stamped", duration(self.collective_ns)),
            ("one collective of the program, completion stamped", duration(self.stamped_collective_ns)),
            ("one bucket of stock DDP, completion not stamped", duration(self.bucket_ns)),
            ("one bucket of stock DDP, completion stamped", duration(self.stamped_bucket_ns)),
            ("recording when one gradient is ready", duration(self.parameter_ns)),
            ("a step of one FSDP2 unit: two gathers, a reduction", duration(self.unit_ns)),
            ("one collective of it", duration(self.unit_ns / COLLECTIVES_OF_UNIT)),
        )
        return Grid("What one of each costs", ("instrument", "cost"), rows, NOTE)

    def words(self) -> str:
        plain, stamped = (100 * self.share(ns) for ns in (self.bucket_ns, self.stamped_bucket_ns))
        return (
            f"Added up, the instruments of a step of {duration(STEP_NS)} with {BUCKETS} buckets of stock DDP and "
            f"{PARAMETERS} parameters take {plain:.2f} % of it without and {stamped:.2f} % with completion times."
        )


def costs(job: Job) -> Costs:
    """Measure on rank 0, while the other ranks join its traces. Call it before the first trace of the process, which
    leaves something in torch's dispatcher. Collective."""
    alone = dist.new_group([0], backend="gloo")
    loops, unit = _loops(alone) if job.rank == 0 else {}, unit_ns(job)
    plain = {name: _least(loop) for name, loop in loops.items()}
    job.meet()
    traced: dict[str, float] = {}
    for names in TRACES:
        with recording(job.folder / "runs" / "costs"), _unstamped() if names == (UNSTAMPED,) else nullcontext():
            traced |= {name: _least(loops[name]) for name in names if name in loops}
            job.meet()
    return _single(plain, traced, unit) if loops else Costs(*[0.0] * 7)


def unit_ns(job: Job) -> float:
    """Return the processor time that tracing takes of the thread that trains, for one FSDP2 unit and step. Collective:
    sharding takes two ranks."""
    step = _sharded(job)
    plain = _least(step, UNIT_TRIALS)
    with recording(job.folder / "runs" / "costs"):
        traced = _least(step, UNIT_TRIALS)
    job.meet()
    return (traced - plain) / UNITS


def _sharded(job: Job) -> Loop:
    """Return a step of a model of UNITS units with almost nothing to compute, timed by its thread."""
    group = dist.new_group(backend="gloo")
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(UNITS)))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    inputs = torch.ones(1, 8)

    def step() -> float:
        begin = time.thread_time_ns()
        model(inputs).sum().backward()
        return time.thread_time_ns() - begin

    return step


def _single(plain: dict[str, float], traced: dict[str, float], unit: float) -> Costs:
    cost = {name: traced[name] - plain[name] for name in plain}
    small, large = (cost[name] / PARAMETERS for name in (SMALL, LARGE))
    unstamped = UNSTAMPED if compiled.loaded() is None else SPLIT  # compiled code always stamps
    bucket, stamped = ((cost[name] - cost[WHOLE]) / (PARAMETERS - 1) for name in (unstamped, SPLIT))
    return Costs(record_ns(), small, large, bucket, stamped, (cost[WHOLE] - cost[ONE]) / (PARAMETERS - 1), unit)


@contextmanager
def _unstamped() -> Iterator[None]:
    """Do not stamp completions."""
    follow = Completions.follow
    Completions.follow = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Completions.follow = follow  # type: ignore[method-assign]


def record_ns(count: int = 100_000) -> float:
    """Return the cost of one record, without the loop around it."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(lambda: Path(folder))
        cost = min(_per_call_ns(lambda: recorder.event(Kind.DONE, 0, 0, 1, 1, 1), count) for _ in range(7))
        recorder.close()
    return cost - min(_per_call_ns(lambda: None, count) for _ in range(7))


def _loops(alone: object) -> dict[str, Loop]:
    """Return loops of the program, and of stock DDP: a bucket for each of PARAMETERS gradients, one for all, and a
    single gradient."""
    split, whole, one = (
        DistributedDataParallel(_Sum(count), process_group=alone, bucket_cap_mb=cap_mb)
        for count, cap_mb in ((PARAMETERS, 1e-6), (PARAMETERS, 1000), (1, 1000))
    )
    program = {SMALL: _program(_issue(SMALL_NBYTES)), LARGE: _program(_issue(STAMPED_NBYTES))}
    stock = {SPLIT: split, UNSTAMPED: split, WHOLE: whole, ONE: one}
    return program | {name: _backward(model) for name, model in stock.items()}


def _issue(nbytes: int) -> Callable[[], object]:
    """Return a call that issues a collective which does nothing."""
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return partial(methodcaller("allreduce", [torch.zeros(nbytes // 4)], options), silent_group())


def _program(issue: Callable[[], object]) -> Loop:
    return lambda: PARAMETERS * _per_call_ns(lambda: issue(), PARAMETERS)


def _backward(model: nn.Module) -> Loop:
    def backward() -> float:
        loss = model()
        begin = time.perf_counter_ns()
        loss.backward()
        return time.perf_counter_ns() - begin

    return backward


def _least(loop: Loop, trials: int = TRIALS) -> float:
    return min(loop() for _ in range(trials))


def _per_call_ns(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count


class _Sum(nn.Module):
    """Parameters of one element, each used once: almost nothing is computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.ones = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.ones)).sum()


@contextmanager
def from_a_companion(run: Path, address: str) -> Iterator[None]:
    """Trace with the `OTEL_*` variables set, so that a separate process exports."""
    os.environ[ENDPOINT] = address
    try:
        with recording(run):
            time.sleep(BEGUN_S)
            yield
    finally:
        del os.environ[ENDPOINT]


def provider_for(address: str) -> TracerProvider:
    """Return a provider as OpenTelemetry's documentation sets it up."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    return provider


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one process reads, makes and sends the spans of a recorded run to a collector on the same machine.
    `cpu_ns`: its processor time for one span."""

    spans_per_s: float
    cpu_ns: float

    def words(self) -> str:
        return (
            f"A process beside the training makes and sends at most {self.spans_per_s:,.0f} spans a second, from the "
            f"records to the collector, with {duration(self.cpu_ns)} of processor time each. Inside the training "
            "process, its interpreter would lose this time."
        )


def sustained(run: Path, address: str) -> Rate:
    """Export the same run again and again, for SUSTAINED_S."""
    begin_ns, begin_cpu_ns, spans = time.perf_counter_ns(), time.process_time_ns(), 0
    while (passed_ns := time.perf_counter_ns() - begin_ns) < SUSTAINED_S * 1e9:
        spans += _exported(run, address)
    return Rate(spans * 1e9 / passed_ns, (time.process_time_ns() - begin_cpu_ns) / spans)


def _exported(run: Path, address: str) -> int:
    from ddptrace.telemetry.delivery.delivery import Patience
    from ddptrace.telemetry.delivery.exports import Following
    from ddptrace.telemetry.delivery.targets import targets_of_options

    stop = threading.Event()
    patience = Patience(SUSTAINED_S, ended=lambda: True, stop=stop)
    following = Following(run, targets_of_options(address, None, None, None), patience, lambda sentence: None)
    following.start(lambda follower: follower.is_over, stop)
    following.wait(20 * SUSTAINED_S)
    spans = sum(delivery.sent for delivery in following.deliveries if delivery.kind == "spans")
    if not spans or not all(delivery.is_whole for delivery in following.deliveries):
        raise DdptraceError(f"the spans of {run} were not delivered to {address}: {following.error or 'nothing came'}")
    return spans
