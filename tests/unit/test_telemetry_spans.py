"""From trees to spans of the real OpenTelemetry SDK."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow, GroupRow
from ddptrace.analysis.tables.table import Table
from ddptrace.telemetry.rows import Parent, of_result
from ddptrace.telemetry.spans.emitter import Emitter, span_id, trace_id
from ddptrace.telemetry.spans.trees import Node, Tree, trees
from tests.made import ZERO_UNIX_NS, make_result

Parents = Mapping[int, Parent | None]


def trees_of(result: Result, parents: Parents | None = None) -> Iterator[Tree]:
    """Of all ranks, in turn."""
    for rows in of_result(result, parents):
        yield from trees(rows)


def emit(result: Result, sampler: Sampler | None = None, parents: Parents | None = None) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    emitter = Emitter(provider, "0")
    for tree in trees_of(result, parents):
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
    for tree in trees_of(result):
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
    (tree,) = trees_of(make_result(ranks=1, steps=1))
    emitter.emit(tree)
    mine.start_span("the user's").end()
    assert provider.get_tracer("ddptrace", "0").id_generator is generator  # type: ignore[attr-defined]
    assert trace_of(memory.get_finished_spans()[-1]) != trace_id(tree.run_id, tree.step)


def by_hand(nbytes: int, *parts: object) -> int:
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=nbytes).digest(), "big")


def test_ids_are_hashes_that_anybody_can_work_out() -> None:
    assert trace_id("5f1e", 3) == by_hand(16, "5f1e", 3)
    assert trace_id("5f1e", None) == by_hand(16, "5f1e", None)
    assert span_id("5f1e", 3, 1, ("phase", 2)) == by_hand(8, "5f1e", 3, 1, "phase", 2)


USERS = Parent(0xABC, 0x7, 1)


def test_steps_hang_under_the_users_span_in_its_trace() -> None:
    result = make_result(ranks=1, steps=2)
    spans = emit(result, parents={0: USERS})
    assert {trace_of(span) for span in spans} == {0xABC}
    assert [span.parent.span_id for span in spans if span.name.startswith("step ") and span.parent] == [0x7, 0x7]
    ids = {span.context.span_id for span in spans if span.context}
    assert {span.parent.span_id for span in spans if not span.name.startswith("step ") and span.parent} < ids


def test_what_is_active_on_the_exporters_own_thread_is_no_parent() -> None:
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 7, is_remote=False))):
        roots = [span for span in emit(make_result(ranks=1, steps=2)) if span.parent is None]
    assert [span.name for span in roots] == ["step · rank 0"] * 2


def test_steps_are_dropped_with_a_user_span_that_is_not_sampled() -> None:
    result = make_result(ranks=2, steps=2)
    kept = emit(result, parents={0: dataclasses.replace(USERS, flags=0), 1: None})
    assert {rank_step(span)[0] for span in kept} == {1}


def linked(result: Result) -> Result:
    """With turns and the group that they are of."""
    rows = [dataclasses.replace(row, turn=row.ordinal) for row in result.collectives]
    ranks = tuple(row.rank for row in result.ranks)
    group = GroupRow("default", ranks, ("node0",))
    return dataclasses.replace(result, collectives=Table(CollectiveRow, rows), groups=Table(GroupRow, [group]))


def ends_of_links(spans: list[ReadableSpan]) -> list[tuple[ReadableSpan, ReadableSpan, int]]:
    """From, to, and the rank that the link says it leads to. KeyError where a link leads nowhere."""
    found = {(trace_of(span), span.context.span_id): span for span in spans if span.context}
    return [
        (span, found[link.context.trace_id, link.context.span_id], int((link.attributes or {})["ddptrace.rank"]))  # type: ignore[arg-type]
        for span in spans
        for link in span.links
    ]


def test_a_collective_is_linked_to_the_spans_of_the_same_one_on_the_other_ranks() -> None:
    result = linked(make_result(ranks=3, steps=2, buckets=2))
    for parents in ({}, {0: USERS, 1: Parent(0xDEF, 0x8, 1), 2: None}):
        spans = emit(result, parents=parents)
        ends = ends_of_links(spans)
        assert len(ends) == 2 * len(result.collectives)
        for one, other, said in ends:
            seq = [(span.attributes or {})["ddptrace.collective.seq"] for span in (one, other)]
            assert seq[0] == seq[1]  # these ranks count alike
            assert rank_step(one)[1] == rank_step(other)[1]
            assert said == rank_step(other)[0] != rank_step(one)[0]


def test_a_rank_alone_in_sight_takes_the_others_to_be_in_its_users_trace() -> None:
    result = linked(make_result(ranks=2, steps=1, buckets=1))
    (span, *_) = [span for span in emit(result, parents={0: USERS}) if span.links and rank_step(span)[0] == 0]
    assert [link.context.trace_id for link in span.links] == [0xABC]


def test_a_failed_collective_has_the_status_error_and_no_other_span_has() -> None:
    result = make_result(ranks=1, steps=1, buckets=2)
    first, row, *rest = result.collectives
    rows = [first, dataclasses.replace(row, error="Connection closed by peer"), *rest]
    spans = emit(dataclasses.replace(result, collectives=Table(CollectiveRow, rows)))
    failed = [span for span in spans if span.status.status_code is trace.StatusCode.ERROR]
    assert [(span.status.description, (span.attributes or {})["ddptrace.collective.seq"]) for span in failed] == [
        ("Connection closed by peer", row.seq)
    ]


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
    result = linked(make_result(ranks=2, steps=2))
    emitter = Emitter(Foreign(inner), "0")
    for tree in trees_of(result):
        emitter.emit(tree)
    spans = memory.get_finished_spans()
    assert not [span for span in spans if span.links]  # they would lead to ids that no span has
    assert Counter((span.name, *rank_step(span), trace_of(span)) for span in spans) == Counter(
        (span.name, *rank_step(span), trace_of(span)) for span in emit(result)
    )
    assert (
        len({span.parent.span_id for span in spans if span.name.startswith("step ") and span.parent}) == 2
    )  # one per step


def test_under_a_provider_that_is_not_the_sdks_steps_hang_under_the_users_span_too() -> None:
    memory = InMemorySpanExporter()
    inner = TracerProvider()
    inner.add_span_processor(SimpleSpanProcessor(memory))
    emitter = Emitter(Foreign(inner), "0")
    for tree in trees_of(make_result(ranks=1, steps=2), {0: USERS}):
        emitter.emit(tree)
    steps = [span for span in memory.get_finished_spans() if span.name.startswith("step ")]
    assert [(trace_of(span), span.parent and span.parent.span_id) for span in steps] == [(0xABC, 0x7)] * 2


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
    for tree in trees_of(result):
        emitter.emit(tree)
    provider.force_flush()
    made = len(result.steps) + len(result.phases) + len(result.buckets) + len(result.collectives)
    assert made > 3000
    assert slow.count == made
