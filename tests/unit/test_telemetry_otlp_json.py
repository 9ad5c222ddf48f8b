"""A file of OTLP in JSON, read back with the official messages."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.errors import DdptraceError
from ddptrace.live.batch import Identity
from ddptrace.telemetry.delivery.delivery import ACCEPTED
from ddptrace.telemetry.delivery.otlp_json import OtlpJson
from ddptrace.telemetry.metrics.totals import Totals, metrics_data
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import LinkTo, Node, Tree

WHO = Identity("5f1e", 3, 0, {"host": "node7", "pid": 4242})


def made() -> list[ReadableSpan]:
    child = Node(
        "all_reduce", ("c", 1), 2, 3, {"ddptrace.comm.hidden_ns": 2**53 + 1, "ratio": 0.5, "is": True},
        links=(LinkTo(4, ("c", 1)),), error="lost",
    )  # fmt: skip
    return SpanMaker().make(WHO, Tree("5f1e", 2**60, 3, 0, (Node("step", ("step",), 0, 9, {}, [child]),)))


def standard(line: str) -> dict[str, Any]:
    """What protobuf's own parser takes: ids not in hex but in base64."""

    def hook(content: dict[str, Any]) -> dict[str, Any]:
        ids = {key for key in content if key in ("traceId", "spanId", "parentSpanId")}
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in ids else value
            for key, value in content.items()
        }

    found: dict[str, Any] = json.loads(line, object_hook=hook)
    return found


def test_each_line_is_a_request_as_it_would_have_been_sent(tmp_path: Path) -> None:
    totals = Totals()
    totals.of_rank(WHO)
    spans, data = made(), metrics_data(totals, 7)
    file = OtlpJson(tmp_path / "out.jsonl")
    assert file.spans(spans) == file.metrics(data) == file.spans(spans) == ACCEPTED
    file.close()
    first, second, third = (tmp_path / "out.jsonl").read_text().splitlines()
    assert first == third
    assert json_format.ParseDict(standard(first), ExportTraceServiceRequest()) == encode_spans(spans)
    assert json_format.ParseDict(standard(second), ExportMetricsServiceRequest()) == encode_metrics(data)


def test_ids_are_hex_and_enumerations_numbers_as_otlp_has_them(tmp_path: Path) -> None:
    file = OtlpJson(tmp_path / "out.jsonl")
    spans = made()
    file.spans(spans)
    file.close()
    (resource,) = json.loads((tmp_path / "out.jsonl").read_text())["resourceSpans"]
    child, parent = resource["scopeSpans"][0]["spans"]
    context = spans[0].get_span_context()
    assert context is not None
    assert (child["traceId"], child["spanId"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert child["parentSpanId"] == parent["spanId"]
    assert (child["kind"], child["status"]["code"]) == (1, 2)
    assert child["startTimeUnixNano"] == str(2**60 + 2)
    assert len(child["links"][0]["spanId"]) == 16


def test_a_full_disk_leaves_no_half_line_and_is_told(tmp_path: Path) -> None:
    file = OtlpJson(tmp_path / "out.jsonl")
    assert file.spans(made()) == ACCEPTED
    whole = (tmp_path / "out.jsonl").read_bytes()
    real, file._file = file._file, _Full(file._file.fileno(), "wb", closefd=False)
    outcome = file.spans(made())
    assert (outcome.settled, outcome.why) == (False, "No space left on device")
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    file._file = real
    assert file.spans(made()) == ACCEPTED
    file.close()
    assert (tmp_path / "out.jsonl").read_bytes() == whole * 2


class _Full(io.FileIO):
    """Takes some of what it is given, and then has no room."""

    def write(self, line: Any) -> int:
        if len(line) < 500:
            raise OSError(28, os.strerror(28))
        return int(super().write(bytes(line[: len(line) - 400])))


def test_a_file_that_cannot_be_written_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DdptraceError, match=r"cannot write .*: No such file or directory; give --otlp-json another"):
        OtlpJson(tmp_path / "no" / "such" / "folder.jsonl")
