"""From trees to spans of the real OpenTelemetry SDK."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased

from ddptrace.analysis import Result
from ddptrace.telemetry.ids import span_id, trace_id
from ddptrace.telemetry.spans import Emitter
from ddptrace.telemetry.trees import Node, trees
from tests.made import ZERO_UNIX_NS, make_result


def emit(result: Result, sampler: Sampler | None = None) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    emitter = Emitter(provider, "0")
    for tree in trees(result):
        emitter.emit(tree)
    return list(memory.get_finished_spans())


def rank_step(span: ReadableSpan) -> tuple[Any, Any]:
    assert span.attributes is not None
    return span.attributes["ddptrace.rank"], span.attributes["ddptrace.step"]


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def test_every_node_becomes_one_span_with_its_times_attributes_and_parent() -> None:
    result = make_result(ranks=1, steps=2, buckets=3)
    spans = {span.context.span_id: span for span in emit(result) if span.context}
    expected = {}
    for tree in trees(result):
        waiting: list[tuple[int | None, Node]] = [(None, root) for root in tree.roots]
        while waiting:
            parent, node = waiting.pop()
            own = span_id(tree.run_id, tree.step, tree.rank, node.key)
            expected[own] = (
                parent,
                ZERO_UNIX_NS + node.begin_at_ns,
                ZERO_UNIX_NS + node.end_at_ns,
                node.attributes,
                node.name,
            )
            waiting += [(own, child) for child in node.children]
    found = {
        own: (
            span.parent.span_id if span.parent else None,
            span.start_time,
            span.end_time,
            dict(span.attributes or {}),
            span.name,
        )
        for own, span in spans.items()
    }
    assert found == expected


def test_all_ranks_of_a_step_share_a_trace_whoever_makes_the_spans() -> None:
    one, other = make_result(ranks=1, steps=3), make_result(ranks=2, steps=3)
    traces = defaultdict(set)
    for span in emit(one) + emit(other):
        traces[rank_step(span)[1]].add(trace_of(span))
    assert traces == {step: {trace_id(one.run_id, step)} for step in range(3)}


def test_another_run_has_other_traces() -> None:
    assert trace_id("a", 1) != trace_id("b", 1)
    assert len({trace_id("a", step) for step in (*range(1000), None)}) == 1001


def test_the_users_own_spans_keep_the_providers_ids() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    mine = provider.get_tracer("ddptrace", "0")  # even under our own name
    generator = mine.id_generator  # type: ignore[attr-defined]
    emitter = Emitter(provider, "0")
    (tree,) = trees(make_result(ranks=1, steps=1))
    emitter.emit(tree)
    mine.start_span("the user's").end()
    assert provider.get_tracer("ddptrace", "0").id_generator is generator  # type: ignore[attr-defined]
    assert trace_of(memory.get_finished_spans()[-1]) != trace_id(tree.run_id, tree.step)


def test_an_active_span_of_the_user_is_not_the_parent() -> None:
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 7, is_remote=False))):
        roots = [span for span in emit(make_result(ranks=1, steps=2)) if span.parent is None]
    assert [span.name for span in roots] == ["step", "step"]


def test_a_ratio_sampler_keeps_or_drops_a_step_on_all_ranks_together() -> None:
    result = make_result(ranks=2, steps=40, buckets=2)
    for sampler in (ParentBased(TraceIdRatioBased(0.5)), TraceIdRatioBased(0.5)):
        kept = Counter(rank_step(span) for span in emit(result, sampler))
        steps = {step for _, step in kept}
        assert 5 < len(steps) < 35
        assert set(kept) == {(rank, step) for rank in range(2) for step in steps}
        assert len(set(kept.values())) == 1  # whole trees
    assert emit(result, ALWAYS_OFF) == []


class Foreign(trace.TracerProvider):
    """Somebody else's provider: the API and no more."""

    def __init__(self, inner: TracerProvider) -> None:
        self._inner = inner

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return ForeignTracer(self._inner.get_tracer(*args, **kwargs))


class ForeignTracer(trace.Tracer):
    def __init__(self, inner: trace.Tracer) -> None:
        self._inner = inner

    def start_span(self, *args: Any, **kwargs: Any) -> trace.Span:
        return self._inner.start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.start_as_current_span(*args, **kwargs)


def test_a_provider_that_is_not_the_sdks_gets_the_same_tree_in_the_same_traces() -> None:
    memory = InMemorySpanExporter()
    inner = TracerProvider()
    inner.add_span_processor(SimpleSpanProcessor(memory))
    result = make_result(ranks=2, steps=2)
    emitter = Emitter(Foreign(inner), "0")
    for tree in trees(result):
        emitter.emit(tree)
    spans = memory.get_finished_spans()
    assert Counter((span.name, *rank_step(span), trace_of(span)) for span in spans) == Counter(
        (span.name, *rank_step(span), trace_of(span)) for span in emit(result)
    )
    assert len({span.parent.span_id for span in spans if span.name == "step" and span.parent}) == 2  # one per step


class Slow(SpanExporter):
    """Takes its time for each batch."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(0.4)
        self.count += len(spans)
        return SpanExportResult.SUCCESS


def test_a_batch_processor_at_default_settings_loses_nothing_however_slow_its_exporter() -> None:
    result = make_result(ranks=1, steps=80, buckets=20)
    slow = Slow()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(slow))
    emitter = Emitter(provider, "0")
    for tree in trees(result):
        emitter.emit(tree)
    provider.force_flush()
    made = len(result.steps) + len(result.phases) + len(result.buckets) + len(result.collectives)
    assert made > 3000
    assert slow.count == made
