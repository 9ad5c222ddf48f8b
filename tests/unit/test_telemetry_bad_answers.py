"""Collectors that drip, answer strangely, or are none: an attempt ends in time, and what is said is fit to read."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ddptrace.telemetry.delivery.channel import WORDS, masked, words
from ddptrace.telemetry.delivery.delivery import Outcome
from ddptrace.telemetry.delivery.otlp import Otlp
from tests.otlp_receiver import Behaviour, Receiver
from tests.unit.test_telemetry_otlp import BOTH, NO_OTLP, made, sent

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION"):
        for signal in ("", "TRACES_", "METRICS_"):
            monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{signal}{name}", raising=False)
    monkeypatch.setattr(words, "of_headers", "")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@contextmanager
def dripping(at_once: bytes, drop: bytes, asked: threading.Event | None = None) -> Iterator[str]:
    """A server that answers with `at_once`, and then a `drop` each tenth of a second. It sets `asked` before."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            if asked is not None:
                asked.set()
            connection.sendall(at_once)
            while not over.wait(0.1):
                try:
                    connection.sendall(drop)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join(10)


def sent_to(url: str, protocol: str = "http/protobuf") -> Outcome:
    destination = Otlp(url, protocol, "the collector")
    try:
        return destination.spans(made())
    finally:
        destination.close()


@pytest.mark.parametrize(
    "at_once",
    [HEAD, HEAD + b"content-length: 1000\r\n\r\n", HEAD + b"connection: close\r\n\r\n"],
    ids=["headers", "body", "body to the end"],
)
def test_one_that_drips_its_answer_is_left_in_time(at_once: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    began = time.monotonic()
    with dripping(at_once, b"x") as url:
        assert sent_to(url) == Outcome(False, why="no answer within 0.5 s")
    assert time.monotonic() - began < 5


def test_a_watch_that_was_not_needed_leaves_the_next_request_alone(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    destination = Otlp(receiver.http_url, "http/protobuf", "the collector")
    for _ in range(3):
        assert destination.spans(made()) == Outcome(True)
        time.sleep(0.2)
    destination.close()


@BOTH
def test_what_a_collector_says_beside_is_made_clean_and_short(receiver: Receiver, protocol: str) -> None:
    receiver.behaviour = Behaviour(refuse_spans=2, message="\x1b[31m" + "x" * 400_000)
    assert sent(receiver, protocol) == Outcome(True, 2, "\\x1b[31m" + "x" * (WORDS - 8))


@pytest.mark.parametrize("body", [b'{"ok":true}', b"[]", b"1"])
def test_json_that_is_no_otlp_is_no_delivery(receiver: Receiver, body: bytes) -> None:
    receiver.behaviour = Behaviour(nonsense=body, content_type="application/json")
    why = f"it answered 200 with application/json {NO_OTLP}"
    assert sent(receiver, "http/protobuf") == Outcome(False, why=why, lasting=True)


def test_an_answer_that_is_no_http_is_told_without_quoting_it() -> None:
    with dripping(b"\x15\x03\x01\x1b[31m\n", b"x") as url:
        told = Outcome(False, why="its answer is not HTTP; is this a collector's address?", lasting=True)
        assert sent_to(url) == told


def test_fewer_than_none_were_not_refused(receiver: Receiver) -> None:
    behaviour = Behaviour(nonsense=b'{"partialSuccess": {"rejectedSpans": "-3"}}', content_type="application/json")
    receiver.behaviour = behaviour
    assert sent(receiver, "http/protobuf") == Outcome(True)


def test_the_two_ports_mixed_up_are_told(receiver: Receiver) -> None:
    told = sent_to(receiver.grpc_url, "http/protobuf"), sent_to(receiver.http_url, "grpc")
    assert [one.why.partition(";")[0] for one in told] == [
        "this port speaks gRPC, not HTTP", "this port speaks HTTP, not gRPC",
    ]  # fmt: skip
    assert all(one.lasting and not one.settled for one in told)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "127.0.0.1:4318", "ftp://x", "http://[v6"])
def test_an_address_that_is_none_is_not_mended_by_time(url: str) -> None:
    assert sent_to(url).lasting


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("http://bob:p/w@host:4318/?api_key=s3", "http://***@host:4318/?***"),
        ("errors resolving bob:pw@nohost:4317", "errors resolving ***@nohost:4317"),
        ("url: /v1/traces?api_key=s3 (Caused by", "url: /v1/traces?*** (Caused by"),
        ("that is not OTLP; is this a collector's address? No", "that is not OTLP; is this a collector's address? No"),
    ],
)
def test_what_is_secret_in_an_address_is_not_shown(said: str, shown: str) -> None:
    assert masked(said) == shown


@BOTH
def test_a_header_that_is_none_is_told_without_its_value(
    receiver: Receiver, protocol: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Bearer s3cr3t")
    receiver.behaviour = Behaviour(status=401)
    destination = Otlp(receiver.http_url, "http/protobuf", "the collector")
    why = destination.spans(made()).why
    destination.close()
    left_out = "a header in OTEL_EXPORTER_OTLP_HEADERS was left out, because it is not name=value"
    assert why == f"it answered 401 Unauthorized; {left_out}"
    assert "s3cr3t" not in "".join(capsys.readouterr())
    assert not logging.getLogger("opentelemetry.util.re").propagate


def test_a_header_that_cannot_be_sent_is_told_without_its_value(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cr3t%0Awith-a-line")
    outcome = sent(receiver, "http/protobuf")
    assert (outcome.settled, outcome.refused, outcome.lasting) == (False, 0, True)
    assert "InvalidHeader" in outcome.why
    assert "s3cr3t" not in outcome.why
