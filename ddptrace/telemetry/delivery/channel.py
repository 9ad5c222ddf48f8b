"""One signal's connection to a collector, through an exporter of OpenTelemetry whose answers are read.

Also what messages may quote of those answers: clean, short and without secrets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ddptrace.errors import printable
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Outcome
from ddptrace.telemetry.environment import METRICS, TRACES

WORDS: Final = 200
"""Most characters that a message quotes of an answer."""
HIDDEN: Final = "***"
_USER: Final = re.compile(r"(?<=://)\S*@|[^\s/'\"(\[]+@")
_QUERY: Final = re.compile(r"(?<=[\w/.\]])\?[^\s'\")]+")
_HEADERS: Final = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_SHORTEST: Final = 3
"""A shorter value of a header is no secret, and occurs inside many words."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One kind of data that OTLP carries here. `rejected` is the field of the answer that counts refused items of an
    accepted request."""

    name: str
    response: type[Message]
    rejected: str

    @property
    def path(self) -> str:
        """The path below the address of a collector that takes HTTP."""
        return f"v1/{self.name}"

    def read(self, answer: Message, count: int) -> Outcome:
        """Return what an answer says about a request with `count` items."""
        partial = getattr(answer, "partial_success", None)
        if partial is None:
            return ACCEPTED
        refused = max(0, min(count, int(getattr(partial, self.rejected, 0))))
        why = quoted(partial.error_message) or ("no reason given" if refused else "")
        return Outcome(True, refused, why)


SPANS: Final = Signal(TRACES, ExportTraceServiceResponse, "rejected_spans")
POINTS: Final = Signal(METRICS, ExportMetricsServiceResponse, "rejected_data_points")
ATTEMPT_S: Final = 30.0
"""The longest attempt, whatever the environment says: people often give its seconds as milliseconds."""


class Heard(Exception):
    """Ends the exporter's own attempts; the outcome is in `Listener.outcome`."""


class Listener:
    """Reads an exporter's answers. `outcome` is that of the latest request, `count` the number of items in it."""

    outcome: Outcome | None = None
    count = 0

    def expect(self, count: int) -> None:
        self.outcome, self.count = None, count


class Channel:
    """Sends one signal. `endpoint` is the collector's address without a path, or None for that of the environment.

    It connects when there is something to send, and anew after each failed attempt, since gRPC would wait for up to two
    minutes before it reconnects.
    """

    def __init__(self, endpoint: str | None, signal: Signal) -> None:
        self._endpoint = endpoint
        self._signal = signal
        self._exporter: Any = None
        self._listener: Listener | None = None

    def send(self, data: Any, count: int) -> Outcome:
        """Make one attempt. Never raises."""
        words.last = ""
        try:
            outcome = self._sent(data, count)
        except Exception as error:  # the exporter's own: a missing certificate, an invalid address
            is_lasting = self._exporter is None or isinstance(error, ValueError)  # a wrong setting
            outcome = Outcome(False, why=f"{type(error).__name__}: {quoted(error)}", lasting=is_lasting)
        if not outcome.settled:
            self.close()
            outcome = replace(outcome, why=f"{outcome.why}{words.of_headers}")
        return outcome

    def close(self) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()

    def connect(self) -> tuple[Any, Listener | None]:
        """Return an exporter and the reader of its answers. If that is None, only success or failure is known."""
        raise NotImplementedError

    def _sent(self, data: Any, count: int) -> Outcome:
        if self._exporter is None:
            self._exporter, self._listener = self.connect()
        listener = self._listener
        if listener is None:
            return Outcome(self._exporter.export(data).name == "SUCCESS", why=words.last)
        listener.expect(count)
        with contextlib.suppress(Heard):
            self._exporter.export(data)
        return listener.outcome or Outcome(True, count, words.last or "the exporter did not send it")


class _LastWords(logging.Handler):
    """Keeps the libraries' latest log message from the terminal, for our own message to quote.

    `of_headers` says that the library left out a header. Its own message would quote the header in full.
    """

    last = of_headers = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == READS_HEADERS:
            self.of_headers = "; a header in OTEL_EXPORTER_OTLP_HEADERS was left out, because it is not name=value"
        else:
            self.last = quoted(record.getMessage())


READS_HEADERS: Final = "opentelemetry.util.re"
words: Final = _LastWords()
for _name in ("opentelemetry.exporter", READS_HEADERS, "urllib3"):
    _logger = logging.getLogger(_name)
    _logger.addHandler(words)
    _logger.propagate = False


def quoted(text: object) -> str:
    """Return a text of others fit for a message: printable, at most `WORDS` characters, masked."""
    return printable(masked(str(text)[: 10 * WORDS]))[:WORDS]


def masked(text: str) -> str:
    """Hide users, passwords and queries of addresses, and the values of the headers that the environment sets."""
    for value in _header_values():
        text = text.replace(value, HIDDEN)
    return _USER.sub(f"{HIDDEN}@", _QUERY.sub(f"?{HIDDEN}", text))


def _header_values() -> Iterator[str]:
    for name, setting in os.environ.items():
        for header in setting.split(",") if _HEADERS.fullmatch(name) else ():
            value = header.partition("=")[2].strip() or header.strip()
            for form in (value, unquote(value), repr(unquote(value))[1:-1]):
                if len(form) >= _SHORTEST:
                    yield form
