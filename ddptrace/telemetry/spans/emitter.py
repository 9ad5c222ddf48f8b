"""Makes spans of trees, in any `TracerProvider`, with their real times and derived ids."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
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

from ddptrace.telemetry.common_attributes import RANK, carried_text
from ddptrace.telemetry.spans.trees import Key, LinkTo, Node, Tree

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
FLUSH_EVERY: Final = 512
"""Number of spans between two flushes: one batch of OpenTelemetry's BatchSpanProcessor, a quarter of its queue."""
FLUSH_TIMEOUT_MS: Final = 5_000
LATEST_UNIX_NS: Final = 2**63 - 1
BREATHE_EVERY: Final = 16
BREATH_S: Final = 0.001


class Emitter:
    """Makes the spans of one run.

    No span is lost silently with the SDK's default settings. BatchSpanProcessor drops spans beyond its queue of 2048,
    so the provider is flushed after every `FLUSH_EVERY` spans, which blocks here while its exporter is slow. After
    every `BREATHE_EVERY` spans the thread sleeps a moment, so that training never waits long for the interpreter's
    lock.

    The SDK's sampler decides as for any other trace. A step is a root span, and its trace id, which a ratio sampler
    uses, is the same on all ranks, so all ranks keep a step or all drop it. If a span of the user was active when the
    rank entered its trace, all steps are children of that span, in its trace, and are dropped with it if it is not
    sampled. Only the SDK's own provider accepts derived ids. With any other one, steps are children of a span that
    nobody sends, take over its trace id, and have no links.
    """

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer = provider.get_tracer("ddptrace", version)
        self._flush: Callable[[int], object] = getattr(provider, "force_flush", lambda timeout_ms: None)
        self._ids: DerivedIds | None = None
        if isinstance(self._tracer, SdkTracer):
            self._tracer = copy.copy(self._tracer)  # the provider gives the same object to every caller
            self._tracer.id_generator = self._ids = DerivedIds()
        self._made = 0

    def emit(self, tree: Tree) -> None:
        """Start and end every span of the tree. Raises what the provider raises."""
        top = self._top(tree)
        for root in tree.roots:
            self._emit(tree, root, top)

    def _top(self, tree: Tree) -> Context:
        """Return the context of the user's span, else an empty one: a span active on this thread must not become the
        parent."""
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
        """Return no links without derived ids, since they would lead to spans that do not exist."""
        return [] if self._ids is None else [Link(_there(tree, link), {RANK: link.rank}) for link in node.links]

    def _pace(self) -> None:
        self._made += 1
        if self._made % BREATHE_EVERY == 0:
            time.sleep(BREATH_S)
        if self._made % FLUSH_EVERY == 0:
            self._flush(FLUSH_TIMEOUT_MS)


def _unix_ns(instant: int) -> int:
    """Return the nearest instant that OTLP can carry: a run that lost its clock may begin before 1970."""
    return min(max(instant, 0), LATEST_UNIX_NS)


def _there(tree: Tree, link: LinkTo) -> SpanContext:
    """Return the other rank's span: in the trace of the user's span on that rank, if there was one. An unknown rank is
    taken to have the same parent as this one."""
    parent = tree.parents[link.rank] if link.rank in tree.parents else tree.parents.get(tree.rank)
    trace = trace_id(tree.run_id, tree.step) if parent is None else parent.trace_id
    there = span_id(tree.run_id, tree.step, link.rank, link.key)
    return SpanContext(trace, there, is_remote=True, trace_flags=SAMPLED)


@lru_cache(maxsize=64)  # every link of a step needs it again
def trace_id(run_id: str, step: int | None) -> int:
    """Return 128 bits, evenly spread as samplers expect. All ranks share the id of a step, and that of no step
    (None)."""
    return _hash(16, run_id, step)


def span_id(run_id: str, step: int | None, rank: int, key: Key) -> int:
    """Return 64 bits. Any rank can derive the id of another rank's span."""
    return _hash(8, run_id, step, rank, *key)


class DerivedIds(IdGenerator):
    """Returns the ids that were set before each span."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def _hash(nbytes: int, *parts: str | int | None) -> int:
    """Return a hash that is never 0, which would be an invalid id."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=nbytes).digest(), "big") or 1
