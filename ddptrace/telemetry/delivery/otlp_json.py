"""A file of OTLP in JSON: one request a line, as in OpenTelemetry's specification of file exporters.

A line is protobuf's own JSON of the request, with two differences that OTLP wants: ids are in hex, and enumerations are
numbers.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.errors import DdptraceError
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Outcome

IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


class OtlpJson:
    """Writes requests to a file, whose earlier content the first request replaces. Spans and metrics may come from two
    threads. Raises DdptraceError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise DdptraceError(f"cannot write {path}: {error.strerror}; give --otlp-json another file") from error
        self._lock = threading.Lock()
        self._is_begun = False

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        return self._write(encode_spans(batch))

    def metrics(self, data: MetricsData) -> Outcome:
        return self._write(encode_metrics(data))

    def close(self) -> None:
        self._file.close()

    def _write(self, request: Message) -> Outcome:
        """Write a whole line, or nothing."""
        line = json.dumps(as_json(request), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if not self._is_begun:
                self._begin()
            begin = self._file.tell() if self._file.seekable() else None
            try:
                _write_all(self._file, line)
            except OSError as error:
                with contextlib.suppress(OSError):  # a device cannot be truncated
                    self._cut(begin)
                return Outcome(False, why=error.strerror or str(error))
        return ACCEPTED

    def _begin(self) -> None:
        with contextlib.suppress(OSError):  # a device has no content
            self._cut(0 if self._file.seekable() else None)
        self._is_begun = True

    def _cut(self, at: int | None) -> None:
        if at is not None:
            self._file.seek(at)
            self._file.truncate()


def _write_all(file: io.RawIOBase, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[file.write(left) or 0 :]


def as_json(request: Message) -> dict[str, Any]:
    """Return the request as OTLP's JSON."""
    content: dict[str, Any] = json_format.MessageToDict(request, use_integers_for_enums=True)
    _ids_to_hex(content)
    return content


def _ids_to_hex(content: Any) -> None:
    for key, value in content.items() if isinstance(content, dict) else ():
        if key in IDS:
            content[key] = base64.b64decode(value).hex()
        else:
            _ids_to_hex(value)
    for value in content if isinstance(content, list) else ():
        _ids_to_hex(value)
