"""The page of telemetry: every metric and every attribute of a span, from their declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Instrument
from ddptrace.telemetry.metrics.prometheus import name_of
from ddptrace.telemetry.spans import attributes
from ddptrace.telemetry.spans.attributes import Attribute

SPANS: Final[dict[str, tuple[Attribute[Any], ...]]] = {
    "step": attributes.STEP_ATTRIBUTES,
    "phase": attributes.PHASE_ATTRIBUTES,
    "bucket": attributes.BUCKET_ATTRIBUTES,
    "collective": (*attributes.COLLECTIVE_ATTRIBUTES, *attributes.MEETING_ATTRIBUTES),
}


def metrics() -> str:
    """Write all metrics as a Markdown table: each with its name in OTLP and in Prometheus."""
    head = "| metric | kind, unit | meaning | attributes |\n|---|---|---|---|"
    return "\n".join([head, *map(_metric, INSTRUMENTS)])


def _metric(one: Instrument) -> str:
    names, attributes = _lines((one.name, name_of(one))), _lines(one.attributes)
    return f"| {names} | {one.kind}, `{one.unit}` | {one.meaning} | {attributes} |"


def _lines(names: Iterable[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)


def spans() -> str:
    """Write the attributes of each kind of span as a Markdown table under its heading."""
    return "\n".join(line for kind, table in SPANS.items() for line in _span(kind, table))


def _span(kind: str, table: tuple[Attribute[Any], ...]) -> Iterator[str]:
    yield f"\n### {kind}\n"
    yield "| attribute | type | meaning |\n|---|---|---|"
    yield from (f"| `{one.name}` | {one.type.__name__} | {one.meaning} |" for one in table)
