"""Stock DDP, accumulation and hand-written collectives, exported as spans while it runs: `spanned.py RUN SPANS`.

Each rank writes its finished spans to SPANS/<rank>.json; with `inside` behind them it trains inside a span of its own.
The exporter looks often, so that it works step by step.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.telemetry.spans import exporter
from tests.programs.leaving import leave

STEPS = 24


def main(run: str, spans: str, where: str = "") -> None:
    exporter.PERIOD_S = 0.2  # type: ignore[misc]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    own = provider.get_tracer("user").start_as_current_span("the user's own")
    with own if where == "inside" else contextlib.nullcontext(), ddptrace.trace(run, tracer_provider=provider):
        train()
        dist.all_reduce(torch.ones(1))  # after the last step
        early = await_spans(memory)
    found = [describe(span) for span in memory.get_finished_spans()]
    Path(spans, f"{dist.get_rank()}.json").write_text(json.dumps({"early": early, "spans": found}))
    leave()


def await_spans(memory: InMemorySpanExporter, patience_s: float = 30) -> int:
    """Until the exporter has made some; how many there are then."""
    deadline = time.monotonic() + patience_s
    while not memory.get_finished_spans() and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(memory.get_finished_spans())


def train() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if step % 5 == 4:
            with model.no_sync():
                model(torch.randn(32, 256)).pow(2).mean().backward()
        loss = model(torch.randn(32, 256)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        metric = loss.detach()
        dist.all_reduce(metric)
        time.sleep(0.05)


def describe(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": context.trace_id,
        "id": context.span_id,
        "parent": span.parent.span_id if span.parent else None,
        "begin": span.start_time,
        "end": span.end_time,
        "attributes": dict(span.attributes or {}),
        "links": [[link.context.trace_id, link.context.span_id, dict(link.attributes or {})] for link in span.links],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
