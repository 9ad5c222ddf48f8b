"""The same training with stock DDP and with BucketedDataParallel, traced and not. `own_reducer_traced.py OUT`

For each case and wrapper a run directory OUT/<case>-<wrapper>. Of our wrapper also what it told the program's own
observer (told-<rank>.json), the spans (spans-<rank>.json), and losses and parameters with and without trace.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.reducer import BucketedDataParallel
from tests.programs.leaving import leave
from tests.programs.reducer_bits import Branches, Norms, Plain, Residual, Towers
from tests.programs.spanned import describe

STEPS, CAP_MB, LATE_S, LATE_STEP = 9, 0.02, 1.5, 3
STOCK, OWN = "stock", "own"


def divided_hook(state: object, bucket):  # type: ignore[no-untyped-def] # torch wants GradBucket itself, not its name
    """Returns the Work's own future, which stock DDP does not take."""
    bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future()


def chained_hook(state: object, bucket):  # type: ignore[no-untyped-def] # as above
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module] = Plain
    both: dict[str, Any] = field(default_factory=dict)  # arguments of both wrappers
    own: Callable[[], dict[str, Any]] = dict  # arguments of ours alone
    hook: Any = None
    micro_batches: int = 1
    is_late: bool = False  # rank 1 comes late to the backward of one step
    windows: bool = False
    stock: bool = True  # whether stock DDP can do it
    drops: bool = False  # each forward leaves layers out, other ones in every micro batch
    drifts_at: int | None = None  # step from which our reducer may have other buckets than stock DDP


CASES = {
    "plain": Case(),
    "hook": Case(hook=chained_hook),
    "bare future": Case(hook=divided_hook, stock=False),
    "no_sync": Case(micro_batches=3),
    "buffers": Case(Norms),
    "unused": Case(Branches, {"find_unused_parameters": True, "bucket_cap_mb": 1e-6}),
    "order drifts": Case(Towers, drifts_at=STEPS // 2),
    "groups in turn": Case(own=lambda: {"process_group": [dist.new_group() for _ in range(2)]}),
    "late": Case(is_late=True),
    "windows": Case(windows=True),
    "layers dropped": Case(Residual, {"bucket_cap_mb": 0.01}, stock=False, drops=True),
    "layers dropped and no_sync": Case(Residual, {"bucket_cap_mb": 0.01}, stock=False, drops=True, micro_batches=2),
}


class Noted:
    """The program's own observer: what it is told, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, tuple[int, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.told.append(
            (name, time.perf_counter_ns(), tuple(arg for arg in args if isinstance(arg, int)))
        )


def wrap(module: nn.Module, wrapper: str, case: Case, **own: Any) -> Any:
    both = {"bucket_cap_mb": CAP_MB} | case.both
    if wrapper == STOCK:
        return DistributedDataParallel(module, **both)
    return BucketedDataParallel(module, first_bucket_mb=both["bucket_cap_mb"], **both, **own)


def train(case: Case, model: Any) -> list[Tensor]:
    """All losses and the final parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + dist.get_rank())
    kept = []
    for step in range(STEPS):
        for micro in range(case.micro_batches):
            at = step * case.micro_batches + micro if case.drops else 10 * (step >= STEPS // 2)
            leaving_out = model.dropping(model.module.dropped(at)) if case.drops else contextlib.nullcontext()
            with contextlib.nullcontext() if micro == case.micro_batches - 1 else model.no_sync(), leaving_out:
                loss = model(torch.randn(16, 32), at).pow(2).mean()
                if case.is_late and step == LATE_STEP and dist.get_rank() == 1:
                    time.sleep(LATE_S)
                loss.backward()
            kept.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return kept + [parameter.detach().clone() for parameter in model.parameters()]


def built(case: Case, wrapper: str, **own: Any) -> Any:
    torch.manual_seed(1)
    model = wrap(case.model(), wrapper, case, **(case.own() | own if wrapper == OWN else {}))
    if case.hook is not None and wrapper == OWN:  # stock DDP's is only seen where it is registered inside the trace
        model.register_comm_hook(None, case.hook)
    return model


def run(out: Path, name: str, wrapper: str) -> None:
    case, rank, noted, memory = CASES[name], dist.get_rank(), Noted(), InMemorySpanExporter()
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1) if case.windows else None
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    path = out / f"{name}-{wrapper}"
    if wrapper == STOCK:
        model = built(case, wrapper)
    else:
        torch.save(train(case, built(case, wrapper)), out / f"{name}-off-{rank}.pt")
        model = built(case, wrapper, observer=noted)
        noted.told.clear()  # the reducer and its first layout
    with ddptrace.trace(path, profile=schedule, tracer_provider=provider):
        if case.hook is not None and wrapper == STOCK:
            model.register_comm_hook(None, case.hook)
        kept = train(case, model)
    if wrapper == OWN:
        torch.save(kept, out / f"{name}-on-{rank}.pt")
        (out / f"{name}-told-{rank}.json").write_text(json.dumps(noted.told))
        spans = [describe(span) for span in memory.get_finished_spans()]
        (out / f"{name}-spans-{rank}.json").write_text(json.dumps(spans))


def three_at_once(path: Path) -> None:
    """One of ours built before the trace, one built inside it, and stock DDP beside them."""
    first = wrap(Plain(), OWN, Case())
    with ddptrace.trace(path):
        models = [first, wrap(Norms(), OWN, Case()), wrap(Towers(), STOCK, Case())]
        optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
        for step in range(STEPS):
            for model in models:
                model(torch.randn(16, 32), step).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def on_off_on(out: Path) -> None:
    model = wrap(Plain(), OWN, Case())
    for name in ("first", "between", "second"):
        tracing = contextlib.nullcontext() if name == "between" else ddptrace.trace(out / name)
        with tracing:
            train(Case(), model)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in CASES:
        for wrapper in (STOCK, OWN) if CASES[name].stock else (OWN,):
            run(out, name, wrapper)
    three_at_once(out / "three")
    on_off_on(out)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
