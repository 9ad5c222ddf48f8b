"""One signal's connection to a collector, through an exporter of OpenTelemetry's that is listened to."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any, Final

from ddptrace.telemetry.delivery.destination import Outcome
from ddptrace.telemetry.delivery.quoted import quoted
from ddptrace.telemetry.delivery.signals import Signal

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
