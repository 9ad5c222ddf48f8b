"""From trees to spans of whatever `TracerProvider` the user gave, with the times at which things really happened."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from ddptrace.telemetry.attributes import RANK, carried_text
from ddptrace.telemetry.ids import DerivedIds, span_id, trace_id
from ddptrace.telemetry.links import LinkTo
from ddptrace.telemetry.trees import Node, Tree

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

FLUSH_EVERY: Final = 512
"""Spans between two flushes: one batch of OpenTelemetry's BatchSpanProcessor, a quarter of its queue."""
FLUSH_TIMEOUT_MS: Final = 5_000
LATEST_UNIX_NS: Final = 2**63 - 1
BREATHE_EVERY: Final = 16
BREATH_S: Final = 0.001


class Emitter:
    """Makes the spans of one run.

    Nothing is lost silently at the SDK's default settings: BatchSpanProcessor drops what exceeds its queue (2048
    spans), so the provider is flushed after every `FLUSH_EVERY` spans, which blocks here while its exporter is slow.
    After every `BREATHE_EVERY` spans the thread sleeps a moment, so that training never waits long for the
    interpreter's lock.

    The SDK's sampler decides as for any other trace: a step is a root span, and its trace id, which a ratio sampler
    goes by, is the same on all ranks, so they keep or drop a step together. Where a span of the user's was active when
    the rank entered its trace, all steps hang under that one, in its trace, and are dropped with it if it is not
    sampled. A provider that is not the SDK's cannot be told ids: there steps hang under a parent span that nobody
    sends, whose trace id they take over, and nothing is linked.
    """

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer = provider.get_tracer("ddptrace", version)
        self._flush: Callable[[int], object] = getattr(provider, "force_flush", lambda timeout_ms: None)
        self._ids: DerivedIds | None = None
        if isinstance(self._tracer, SdkTracer):
            self._tracer = copy.copy(self._tracer)  # the provider hands out the same object to everyone who asks
            self._tracer.id_generator = self._ids = DerivedIds()
        self._made = 0

    def emit(self, tree: Tree) -> None:
        """Start and end every span of the tree. Raises what the provider raises."""
        top = self._top(tree)
        for root in tree.roots:
            self._emit(tree, root, top)

    def _top(self, tree: Tree) -> Context:
        """Under the user's span. Else an empty context: what is active on this thread is nobody's parent."""
        parent, own_trace = tree.parents.get(tree.rank), trace_id(tree.run_id, tree.step)
        if self._ids is not None:
            self._ids.trace_id = own_trace
            if parent is None:
                return Context()
        if parent is not None:
            above = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags))
        else:
            nobody = span_id(tree.run_id, tree.step, -1, ())
            above = SpanContext(own_trace, nobody, is_remote=True, trace_flags=SAMPLED)
        return set_span_in_context(NonRecordingSpan(above), Context())

    def _emit(self, tree: Tree, node: Node, context: Context) -> None:
        if self._ids is not None:
            self._ids.span_id = span_id(tree.run_id, tree.step, tree.rank, node.key)
        begin, end = (_unix_ns(tree.zero_unix_ns + at_ns) for at_ns in (node.begin_at_ns, node.end_at_ns))
        span = self._tracer.start_span(
            carried_text(node.name),
            context=context,
            start_time=begin,
            attributes=node.attributes,
            links=self._links(tree, node),
        )
        if node.error is not None:
            span.set_status(Status(StatusCode.ERROR, carried_text(node.error)))
        if node.children:
            inside = set_span_in_context(span, Context())
            for child in node.children:
                self._emit(tree, child, inside)
        span.end(end_time=end)
        self._pace()

    def _links(self, tree: Tree, node: Node) -> list[Link]:
        """None without derived ids: nothing has those that they would lead to."""
        return [] if self._ids is None else [Link(_there(tree, link), {RANK: link.rank}) for link in node.links]

    def _pace(self) -> None:
        self._made += 1
        if self._made % BREATHE_EVERY == 0:
            time.sleep(BREATH_S)
        if self._made % FLUSH_EVERY == 0:
            self._flush(FLUSH_TIMEOUT_MS)


def _unix_ns(instant: int) -> int:
    """The nearest that OTLP has: a run whose clock was lost may count from before 1970."""
    return min(max(instant, 0), LATEST_UNIX_NS)


def _there(tree: Tree, link: LinkTo) -> SpanContext:
    """Where the other rank's span is: in the trace of the user's span there, where that is known. Of a rank that has
    not been heard of, it is taken to be as here."""
    parent = tree.parents[link.rank] if link.rank in tree.parents else tree.parents.get(tree.rank)
    trace = trace_id(tree.run_id, tree.step) if parent is None else parent.trace_id
    there = span_id(tree.run_id, tree.step, link.rank, link.key)
    return SpanContext(trace, there, is_remote=True, trace_flags=SAMPLED)
