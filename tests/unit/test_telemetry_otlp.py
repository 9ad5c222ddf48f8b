"""One attempt at a real receiver, over gRPC and HTTP: what it answered is noticed, and nobody tries again behind us."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.live.batch import Identity
from ddptrace.telemetry.common_attributes import RANK
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Outcome
from ddptrace.telemetry.delivery.otlp import Otlp
from ddptrace.telemetry.metrics.totals import Totals, metrics_data
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import Node, Tree
from tests.otlp_receiver import Behaviour, Receiver, attributes

BOTH = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
WHO = Identity("5f1e", 3, 0, {"host": "node7", "pid": 4242})
SPANS = 5
NO_OTLP = "that is not OTLP; is this a collector's address?"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION"):
        for signal in ("", "TRACES_", "METRICS_"):
            monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{signal}{name}", raising=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


def made() -> list[ReadableSpan]:
    nodes = tuple(Node("step", ("step", k), 10 * k, 10 * k + 5, {RANK: 3}) for k in range(SPANS))
    return SpanMaker().make(WHO, Tree("5f1e", 1_000, 3, 0, nodes))


def sent(receiver: Receiver, protocol: str) -> Outcome:
    destination = Otlp(receiver.url(protocol), protocol, "the collector")
    try:
        return destination.spans(made())
    finally:
        destination.close()


@BOTH
def test_what_is_accepted_has_arrived(receiver: Receiver, protocol: str) -> None:
    assert sent(receiver, protocol) == ACCEPTED
    told = [(one.resource["service.instance.id"], one.scope, one.item.name, one.item.start_time_unix_nano,
             one.item.end_time_unix_nano, attributes(one.item.attributes)) for one in receiver.spans()]  # fmt: skip
    assert told == [("5f1e-3", "ddptrace", "step", 1_000 + 10 * k, 1_005 + 10 * k, {RANK: 3}) for k in range(SPANS)]


@BOTH
def test_metrics_go_the_same_way(receiver: Receiver, protocol: str) -> None:
    totals = Totals()
    totals.of_rank(WHO)
    destination = Otlp(receiver.url(protocol), protocol, "the collector")
    assert destination.metrics(metrics_data(totals, 7)) == ACCEPTED
    destination.close()
    assert {one.resource["service.instance.id"] for one in receiver.points()} == {"5f1e-3"}
    assert {one.item.name for one in receiver.points()} == {"ddptrace.records.dropped", "ddptrace.steps.dropped"}


@BOTH
def test_spans_refused_out_of_a_request_that_was_taken_are_counted(receiver: Receiver, protocol: str) -> None:
    receiver.behaviour = Behaviour(refuse_spans=2, message="too old")
    assert sent(receiver, protocol) == Outcome(True, 2, "too old")


@BOTH
def test_a_word_beside_the_answer_is_passed_on(receiver: Receiver, protocol: str) -> None:
    receiver.behaviour = Behaviour(message="you send much")
    assert sent(receiver, protocol) == Outcome(True, 0, "you send much")


def test_a_request_that_is_never_taken_counts_as_refused(receiver: Receiver) -> None:
    receiver.behaviour = Behaviour(code=grpc.StatusCode.INVALID_ARGUMENT, message="no such thing")
    assert sent(receiver, "grpc") == Outcome(True, SPANS, "invalid argument: no such thing")
    receiver.behaviour = Behaviour(status=400, nonsense=b"no such\x1b thing", content_type="text/plain")
    assert sent(receiver, "http/protobuf") == Outcome(True, SPANS, "it answered 400 Bad Request: no such\\x1b thing")


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (Behaviour(status=503, headers={"retry-after": "7"}),
         Outcome(False, 0, "it answered 503 Service Unavailable", 7)),
        (Behaviour(status=404), Outcome(False, 0, "it answered 404 Not Found", lasting=True)),
        (Behaviour(status=302, headers={"location": "http://b/"}),
         Outcome(False, 0, "it answered 302 and redirects to http://b/", lasting=True)),
        (Behaviour(nonsense=b"<html>Welcome!"),
         Outcome(False, 0, f"it answered 200 with text/html {NO_OTLP}", lasting=True)),
        (Behaviour(nonsense=b"\xff\xff", content_type="application/x-protobuf"),
         Outcome(False, 0, f"it answered 200 with application/x-protobuf {NO_OTLP}", lasting=True)),
        (Behaviour(nonsense=b'{"partialSuccess": {"rejectedSpans": "3", "new": 1}}', content_type="application/json"),
         Outcome(True, 3, "no reason given")),
        (Behaviour(nonsense=b"", content_type="text/plain"), ACCEPTED),
        (Behaviour(nonsense=b"0a", content_type="text/plain"),  # as bytes it were a message
         Outcome(False, 0, f"it answered 200 with text/plain {NO_OTLP}", lasting=True)),
    ],
)  # fmt: skip
def test_every_answer_over_http_is_read(receiver: Receiver, behaviour: Behaviour, outcome: Outcome) -> None:
    receiver.behaviour = behaviour
    assert sent(receiver, "http/protobuf") == outcome
    assert receiver.asked == 1  # OpenTelemetry's own exporter would ask again and again


@pytest.mark.parametrize(
    ("code", "words", "lasting"),
    [
        (grpc.StatusCode.UNAVAILABLE, "unavailable: come again", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "resource exhausted: come again", False),
        (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated: come again", True),
        (grpc.StatusCode.UNIMPLEMENTED, "unimplemented: come again", True),
    ],
)
def test_every_refusal_over_grpc_is_heard_once(
    receiver: Receiver, code: grpc.StatusCode, words: str, lasting: bool
) -> None:
    receiver.behaviour = Behaviour(code=code, message="come again")
    assert sent(receiver, "grpc") == Outcome(False, 0, words, lasting=lasting)
    assert receiver.asked == 1


@BOTH
def test_one_that_does_not_answer_is_left_in_time(
    receiver: Receiver, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    receiver.behaviour = Behaviour(slow_s=3.0)
    began = time.monotonic()
    outcome = sent(receiver, protocol)
    assert not outcome.settled
    assert outcome.why == "no answer within 0.5 s"
    assert time.monotonic() - began < 2.5


@BOTH
def test_where_nobody_listens_it_is_said(protocol: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        destination = Otlp(f"http://127.0.0.1:{port}", protocol, "the collector")
        outcome = destination.spans(made())
        destination.close()
    assert (outcome.settled, outcome.refused) == (False, 0)
    assert "onnection refused" in outcome.why


@BOTH
def test_one_that_died_is_found_again_when_it_is_back(receiver: Receiver, protocol: str) -> None:
    destination = Otlp(receiver.url(protocol), protocol, "the collector")
    assert destination.spans(made()) == ACCEPTED
    receiver.behaviour = Behaviour(die_after=1)
    assert not destination.spans(made()).settled
    receiver.behaviour = Behaviour()
    assert destination.spans(made()) == ACCEPTED
    destination.close()
    assert len(receiver.spans()) == 2 * SPANS


def test_a_collector_over_grpc_is_reached_as_soon_as_it_is_there() -> None:
    """Left alone, a connection that failed is not tried again for a second, and then for longer and longer."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    destination = Otlp(f"http://127.0.0.1:{port}", "grpc", "the collector")
    assert not destination.spans(made()).settled
    with Receiver(port) as receiver:
        assert destination.spans(made()) == ACCEPTED
        destination.close()
        assert len(receiver.spans()) == SPANS


@BOTH
def test_the_variables_of_the_standard_hold(receiver: Receiver, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to, under which headers, and packed how."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url(protocol))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    destination = Otlp(None, protocol, "the collector")
    assert destination.spans(made()) == ACCEPTED
    destination.close()
    assert len(receiver.spans()) == SPANS
    assert receiver.headers[0]["api-key"] == "a b"
    if protocol != "grpc":  # there it is below what a servicer sees
        assert receiver.headers[0]["content-encoding"] == "gzip"


@BOTH
def test_settings_that_the_exporter_refuses_are_no_exception(
    receiver: Receiver, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file")
    destination = Otlp("https://127.0.0.1:1", protocol, "the collector")
    outcome = destination.spans(made())
    destination.close()
    assert not outcome.settled
    assert outcome.why


def test_the_exporters_own_words_stay_off_the_terminal(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    for logger in ("http.trace_exporter", "grpc.exporter"):
        above = logging.getLogger(f"opentelemetry.exporter.otlp.proto.{logger}")
        while above.parent is not None and above.propagate:
            above = above.parent
        assert above.name == "opentelemetry.exporter"
    receiver.behaviour = Behaviour(status=503)
    sent(receiver, "http/protobuf")
    assert capsys.readouterr() == ("", "")
