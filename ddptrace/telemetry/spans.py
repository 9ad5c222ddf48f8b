"""From trees to spans of whatever `TracerProvider` the user gave, with the times at which things really happened."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from ddptrace.telemetry.ids import DerivedIds, span_id, trace_id
from ddptrace.telemetry.trees import Node, Tree

FLUSH_EVERY: Final = 512
"""Spans between two flushes: one batch of OpenTelemetry's BatchSpanProcessor, a quarter of its queue."""
FLUSH_TIMEOUT_MS: Final = 5_000
BREATHE_EVERY: Final = 16
BREATH_S: Final = 0.001


class Emitter:
    """Makes the spans of one run.

    Nothing is lost silently at the SDK's default settings: BatchSpanProcessor drops what exceeds its queue (2048
    spans), so the provider is flushed after every `FLUSH_EVERY` spans, which blocks here while its exporter is slow.
    After every `BREATHE_EVERY` spans the thread sleeps a moment, so that training never waits long for the
    interpreter's lock.

    The SDK's sampler decides as for any other trace: a step is a root span, and its trace id, which a ratio sampler
    goes by, is the same on all ranks, so they keep or drop a step together. A provider that is not the SDK's cannot be
    told ids: there steps hang under a parent span that nobody sends, whose trace id they take over.
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
        """An empty context, not the current one: the user's own active span is not the parent."""
        trace = trace_id(tree.run_id, tree.step)
        if self._ids is not None:
            self._ids.trace_id = trace
            return Context()
        sampled = TraceFlags(TraceFlags.SAMPLED)
        parent = SpanContext(trace, span_id(tree.run_id, tree.step, -1, ()), is_remote=True, trace_flags=sampled)
        return set_span_in_context(NonRecordingSpan(parent), Context())

    def _emit(self, tree: Tree, node: Node, context: Context) -> None:
        if self._ids is not None:
            self._ids.span_id = span_id(tree.run_id, tree.step, tree.rank, node.key)
        begin, end = tree.zero_unix_ns + node.begin_at_ns, tree.zero_unix_ns + node.end_at_ns
        span = self._tracer.start_span(node.name, context=context, start_time=begin, attributes=node.attributes)
        if node.children:
            inside = set_span_in_context(span, Context())
            for child in node.children:
                self._emit(tree, child, inside)
        span.end(end_time=end)
        self._pace()

    def _pace(self) -> None:
        self._made += 1
        if self._made % BREATHE_EVERY == 0:
            time.sleep(BREATH_S)
        if self._made % FLUSH_EVERY == 0:
            self._flush(FLUSH_TIMEOUT_MS)
