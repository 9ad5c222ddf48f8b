"""Trainings exported to an endpoint that is missing, slow, refusing, dying half-way, or no collector at all."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Semaphore

import pytest

import ddptrace
from ddptrace.telemetry.companion.companion import GRACE_S, LEAVE_S
from tests.exported_runs import Trained, asking, companions, expected, export, train, wait_until
from tests.launch import environment
from tests.otlp_receiver import Behaviour, Receiver

pytestmark = pytest.mark.alone  # all read the same trainings, of which one test compares times

TRAINING = Semaphore(3)
EXIT_S = 8.0  # 2 s, and what a machine that does much else takes beside

BAD = {
    "missing": (None, "onnection refused"),
    "slow": (Behaviour(slow_s=20.0), "no answer within 1.0 s"),
    "refusing": (Behaviour(status=503), "it answered 503 Service Unavailable"),
    "dying": (Behaviour(die_after=1), ""),
    "nonsense": (Behaviour(nonsense=b"<html>Log in"), "it answered 200 with text/html that is not OTLP"),
}

LASTING = "nonsense"
"""Time does not mend it."""


@dataclass(frozen=True)
class Bad:
    trained: Trained
    receiver: Receiver
    url: str
    arrived: int  # spans that were answered for, before the companion gave up
    spans: int  # in the tables
    outlived_s: float  # so long its companion outlived the training


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bad]]:
    """Three at a time, since they mostly sleep; their companions wait together."""
    train(tmp_path_factory.mktemp("plain"), {n: v for n, v in environment().items() if not n.startswith("OTEL_")})
    folders = {how: tmp_path_factory.mktemp(how) for how in BAD}
    with contextlib.ExitStack() as exits, ThreadPoolExecutor(len(BAD)) as pool:
        receivers = {how: exits.enter_context(Receiver()) for how in BAD}
        trained = pool.map(partial(_bad, receivers, folders), BAD)
        yield dict(zip(BAD, trained, strict=True))


def _bad(receivers: dict[str, Receiver], folders: dict[str, Path], how: str) -> Bad:
    """A training, and what became of its companion."""
    with TRAINING:
        one, url = _trained(how, receivers[how], folders[how])
    outlived_s = _outlived_s(one)
    arrived = len(receivers[how].spans()) if how == "dying" else 0  # the slow one never did
    return Bad(one, receivers[how], url, arrived, len(expected(ddptrace.analyze(one.run))), outlived_s)


def _outlived_s(one: Trained) -> float:
    began = time.monotonic()
    wait_until(lambda: not companions(one.run))
    return time.monotonic() - began


def _trained(how: str, receiver: Receiver, folder: Path) -> tuple[Trained, str]:
    behaviour, _ = BAD[how]
    receiver.behaviour = behaviour or Behaviour()
    url = _nobodys() if behaviour is None else receiver.http_url
    return train(folder, asking(url, "http/protobuf", EXPORTER_OTLP_TIMEOUT="1")), url


def _nobodys() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize("how", BAD)
def test_a_bad_endpoint_costs_the_training_two_seconds_at_most_and_it_is_told(how: str, bad: dict[str, Bad]) -> None:
    trained = bad[how].trained
    assert trained.left_s < EXIT_S
    (warned,) = trained.told[0]["warnings"]
    assert trained.told[1]["warnings"] == []
    still = "not all telemetry was delivered 2 s after the end of training" in warned
    if how == LASTING:  # it is not waited for, though on a busy machine it may not have come so far after 2 s
        assert still or f"{bad[how].spans} of {bad[how].spans} spans and " in warned
        assert bad[how].outlived_s < GRACE_S - LEAVE_S
    else:
        assert still
    assert BAD[how][1] in warned
    assert f"`ddptrace export {trained.run}` delivers it" in warned


@pytest.mark.parametrize("how", BAD)
def test_what_a_bad_endpoint_did_not_take_is_counted_and_said_once(how: str, bad: dict[str, Bad]) -> None:
    one = bad[how]
    assert not one.arrived or how == "dying"  # the one request that it answers may be one of metrics
    spans = re.escape(f"{one.spans - one.arrived:,} of {one.spans:,} spans")
    to = re.escape(f"were not delivered to {one.url} (")
    assert re.search(rf" {spans}( and \d+ of \d+ metric points)? {to}", one.trained.log)
    assert len(one.trained.log.splitlines()) < 10  # it was tried a dozen times


@pytest.mark.parametrize("how", BAD)
def test_later_everything_is_delivered_from_the_directory(how: str, bad: dict[str, Bad]) -> None:
    one = bad[how]
    one.receiver.behaviour = Behaviour()
    done = export(one.trained.run, "--otlp", one.receiver.http_url)
    assert done.returncode == 0, done.stderr
    assert len({span.item.span_id for span in one.receiver.spans()}) == one.spans
