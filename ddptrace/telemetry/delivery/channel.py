"""One signal's connection to a collector, through an exporter of OpenTelemetry's that is listened to."""

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
from ddptrace.telemetry.delivery.destination import ACCEPTED, Outcome
from ddptrace.telemetry.environment import METRICS, TRACES

WORDS: Final = 200
"""Of what a stranger says so many characters are quoted."""
HIDDEN: Final = "***"
_USER: Final = re.compile(r"(?<=://)\S*@|[^\s/'\"(\[]+@")
_QUERY: Final = re.compile(r"(?<=[\w/.\]])\?[^\s'\")]+")
_HEADERS: Final = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_SHORTEST: Final = 3
"""A header's value that is shorter is no secret, and stands in many words."""


@dataclass(frozen=True, slots=True)
class Signal:
    """`rejected`: the field that counts what was refused out of a request that was otherwise accepted."""

    name: str
    response: type[Message]
    rejected: str

    @property
    def path(self) -> str:
        """Below the address of a collector that takes HTTP."""
        return f"v1/{self.name}"

    def read(self, answer: Message, count: int) -> Outcome:
        """What an answer says of a request that held `count` of these."""
        partial = getattr(answer, "partial_success", None)
        if partial is None:
            return ACCEPTED
        refused = max(0, min(count, int(getattr(partial, self.rejected, 0))))
        why = quoted(partial.error_message) or ("no reason given" if refused else "")
        return Outcome(True, refused, why)


SPANS: Final = Signal(TRACES, ExportTraceServiceResponse, "rejected_spans")
POINTS: Final = Signal(METRICS, ExportMetricsServiceResponse, "rejected_data_points")
ATTEMPT_S: Final = 30.0
"""No attempt is longer, whatever the environment says: its unit is mistaken for milliseconds as often as not."""


class Heard(Exception):
    """Ends the exporter's own attempts; what was heard stands in `Listener.outcome`."""


class Listener:
    """`outcome`: of the latest request. `count`: how many things the next request holds."""

    outcome: Outcome | None = None
    count = 0

    def expect(self, count: int) -> None:
        self.outcome, self.count = None, count


class Channel:
    """`endpoint`: where the collector is, without a path; None: where the environment says. The connection is made when
    there is something to send, and made anew after each attempt that failed: gRPC would wait for up to two minutes."""

    def __init__(self, endpoint: str | None, signal: Signal) -> None:
        self._endpoint = endpoint
        self._signal = signal
        self._exporter: Any = None
        self._listener: Listener | None = None

    def send(self, data: Any, count: int) -> Outcome:
        """One attempt. Raises nothing."""
        words.last = ""
        try:
            outcome = self._sent(data, count)
        except Exception as error:  # a certificate that is no file, an address that is none: the exporter's own
            is_lasting = self._exporter is None or isinstance(error, ValueError)  # somebody said something wrong
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
        """An exporter, and what hears its answers; None where nothing can: then only yes or no is known."""
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
    """What the libraries have to say: it is told once, by us, and not to the terminal each time. `of_headers`: that
    some were left out, since they are none; the library's own words would quote them whole."""

    last = of_headers = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == READS_HEADERS:
            self.of_headers = "; a header that OTEL_EXPORTER_OTLP_HEADERS says was left out: it is no name=value"
        else:
            self.last = quoted(record.getMessage())


READS_HEADERS: Final = "opentelemetry.util.re"
words: Final = _LastWords()
for _name in ("opentelemetry.exporter", READS_HEADERS, "urllib3"):
    _logger = logging.getLogger(_name)
    _logger.addHandler(words)
    _logger.propagate = False


def quoted(said: object) -> str:
    return printable(masked(str(said)[: 10 * WORDS]))[:WORDS]


def masked(text: str) -> str:
    """Without users and passwords in addresses, without their queries, and without the values of the headers that the
    environment says."""
    for value in _header_values():
        text = text.replace(value, HIDDEN)
    return _USER.sub(f"{HIDDEN}@", _QUERY.sub(f"?{HIDDEN}", text))


def _header_values() -> Iterator[str]:
    for name, said in os.environ.items():
        for header in said.split(",") if _HEADERS.fullmatch(name) else ():
            value = header.partition("=")[2].strip() or header.strip()
            for form in (value, unquote(value), repr(unquote(value))[1:-1]):
                if len(form) >= _SHORTEST:
                    yield form
