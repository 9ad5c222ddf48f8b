"""The user's span that a trace is entered in, found without importing OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from opentelemetry import trace

from ddptrace.telemetry.rows import Parent, parent_of
from ddptrace.tracing import active_span

SPAN = trace.SpanContext(0xABC, 0x7, is_remote=False, trace_flags=trace.TraceFlags(1))


def test_the_active_span_is_told_as_it_is_read() -> None:
    with trace.use_span(trace.NonRecordingSpan(SPAN)):
        assert active_span() == "00-00000000000000000000000000000abc-0000000000000007-01"
        assert parent_of({"traceparent": active_span()}) == Parent(0xABC, 0x7, 1)
    assert active_span() is None


def test_where_the_program_has_no_opentelemetry_it_is_not_imported() -> None:
    asked = "import sys; from ddptrace.tracing import active_span; assert active_span() is None"
    found = f"{asked}; assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    subprocess.run([sys.executable, "-c", found], check=True)


def test_a_span_that_cannot_be_asked_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace())  # type: ignore[arg-type]
    assert active_span() is None
