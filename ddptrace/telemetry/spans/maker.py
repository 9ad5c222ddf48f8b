"""Makes the SDK's spans of trees and holds them in memory: no processor with a queue could drop any."""

from __future__ import annotations

import os

from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider

from ddptrace.errors import DdptraceError
from ddptrace.live.batch import Identity
from ddptrace.telemetry.common_attributes import resource_of
from ddptrace.telemetry.environment import extra, is_disabled
from ddptrace.telemetry.spans.emitter import Emitter
from ddptrace.telemetry.spans.trees import Tree
from ddptrace.version import __version__


class SpanMaker:
    """Makes the spans of any number of ranks, each with its own resource.

    The environment's samplers and limits apply (`OTEL_TRACES_SAMPLER` and the like).

    Raises:
        DdptraceError: `OTEL_SDK_DISABLED` is true, or a limit is not a number.
    """

    def __init__(self) -> None:
        if is_disabled(os.environ):
            raise DdptraceError("OTEL_SDK_DISABLED is true, so no span can be made; unset it to export")
        with extra():
            self._limits = SpanLimits()
        self._ranks: dict[tuple[str, int], _OfRank] = {}

    def make(self, identity: Identity, tree: Tree) -> list[ReadableSpan]:
        """Return the sampled spans of the tree."""
        key = identity.run_id, identity.rank
        if key not in self._ranks:
            self._ranks[key] = _OfRank(identity, self._limits)
        return self._ranks[key].make(tree)


class _OfRank:
    def __init__(self, identity: Identity, limits: SpanLimits) -> None:
        self._collected = _Collected()
        provider = TracerProvider(resource=resource_of(identity), shutdown_on_exit=False, span_limits=limits)
        provider.add_span_processor(self._collected)
        self._emitter = _Unpaced(provider, __version__)

    def make(self, tree: Tree) -> list[ReadableSpan]:
        self._emitter.emit(tree)
        return self._collected.taken()


class _Unpaced(Emitter):
    """Never pauses: no queue can overflow, and no training in this process waits for the interpreter."""

    def _pace(self) -> None:
        pass


class _Collected(SpanProcessor):
    def __init__(self) -> None:
        self._ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if (
            span.context is not None and span.context.trace_flags.sampled
        ):  # a sampler may record spans that must not be exported
            self._ended.append(span)

    def taken(self) -> list[ReadableSpan]:
        taken, self._ended = self._ended, []
        return taken
