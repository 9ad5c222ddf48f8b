"""A batch is kept until it is accepted, in bounded time; what became of it is counted, and said once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from ddptrace.errors import DdptraceError
from ddptrace.live.batch import Identity
from ddptrace.telemetry.delivery import delivery as module
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Delivery, Outcome, Patience, points, requests_of
from ddptrace.telemetry.delivery.reports import complaint, success
from ddptrace.telemetry.metrics.totals import Totals, metrics_data
from ddptrace.telemetry.spans.maker import SpanMaker
from ddptrace.telemetry.spans.trees import Node, Tree
from tests.conftest import ROOT

DOWN = Outcome(False, why="it is down")


class Planned:
    """Answers as planned, and with the last answer from then on."""

    name = "the collector"

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.got: list[Sequence[ReadableSpan] | MetricsData] = []

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        return self._answer(batch)

    def metrics(self, data: MetricsData) -> Outcome:
        return self._answer(data)

    def _answer(self, what: Sequence[ReadableSpan] | MetricsData) -> Outcome:
        self.got.append(what)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)


def batch(count: int = 3) -> list[ReadableSpan]:
    nodes = tuple(Node("step", ("step", k), k, k + 1, {}) for k in range(count))
    return SpanMaker().make(Identity("5f1e", 0, 0, {}), Tree("5f1e", 0, 0, 0, nodes))


def delivery(planned: Planned, said: list[str], patience: Patience | None = None) -> Delivery:
    endless = Patience(0.0, ended=lambda: False, stop=threading.Event())
    return Delivery(planned, "spans", patience or endless, said.append)


def test_a_batch_is_sent_until_it_is_accepted_and_the_trouble_is_said_once() -> None:
    planned, said = Planned(DOWN, DOWN, DOWN, ACCEPTED), list[str]()
    one, first = delivery(planned, said), batch()
    one.spans(first)
    assert planned.got == [first] * 4
    assert (one.sent, one.refused, one.lost, one.is_whole) == (3, 0, 0, True)
    assert said == ["the collector does not take the spans (it is down)", "the collector takes the spans again"]


def test_what_is_refused_is_counted_and_not_sent_again() -> None:
    planned, said = Planned(Outcome(True, 2, "too old")), list[str]()
    one = delivery(planned, said)
    one.spans(batch())
    one.spans(batch())
    assert len(planned.got) == 2
    assert (one.sent, one.refused, one.lost) == (2, 4, 0)
    assert said == ["the collector refused 2 spans: too old"]
    assert complaint([one], ROOT) == "4 of 6 spans were not delivered to the collector (too old)"


def test_after_the_end_of_the_run_there_is_patience_for_a_while_and_then_none_at_all() -> None:
    planned, said = Planned(DOWN), list[str]()
    one = delivery(planned, said, Patience(0.3, ended=lambda: True, stop=threading.Event()))
    began = time.monotonic()
    one.spans(batch())
    assert 0.3 <= time.monotonic() - began < 5
    asked = len(planned.got)
    assert asked > 3
    one.spans(batch())  # the next ones are not even tried
    assert len(planned.got) == asked
    assert (one.sent, one.lost, one.is_given_up) == (0, 6, True)
    assert len(said) == 1
    told = f"6 of 6 spans were not delivered to the collector (it is down); `ddptrace export {ROOT}` delivers it"
    assert str(complaint([one], ROOT)).startswith(told)
    assert str(complaint([one], ROOT, is_counted=False)).startswith("at least 6 of 6 spans")


def test_as_long_as_the_run_goes_on_there_is_no_end_of_patience() -> None:
    is_over = threading.Event()
    planned, said = Planned(DOWN), list[str]()
    one = delivery(planned, said, Patience(0.05, ended=is_over.is_set, stop=threading.Event()))
    thread = threading.Thread(target=one.spans, args=(batch(),))
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    assert one.lost == 0
    is_over.set()
    thread.join(20)
    assert not thread.is_alive()
    assert one.lost == 3


def test_who_is_asked_to_stop_tries_once_more_and_no_longer() -> None:
    stop = threading.Event()
    planned, said = Planned(DOWN), list[str]()
    one = delivery(planned, said, Patience(60.0, ended=lambda: False, stop=stop))
    stop.set()
    one.spans(batch())
    one.spans(batch())
    assert (len(planned.got), one.lost) == (1, 6)


def test_what_time_does_not_mend_is_tried_again_only_while_the_run_goes_on() -> None:
    is_over = threading.Event()
    planned, said = Planned(Outcome(False, why="no such service", lasting=True)), list[str]()
    one = delivery(planned, said, Patience(60.0, ended=is_over.is_set, stop=threading.Event()))
    thread = threading.Thread(target=one.spans, args=(batch(),))
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()
    is_over.set()
    thread.join(20)
    assert not thread.is_alive()
    assert (len(planned.got) > 3, one.lost) == (True, 3)


def test_what_accepts_renews_the_patience_where_that_is_wanted() -> None:
    planned, said = Planned(ACCEPTED), list[str]()
    patience = Patience(0.5, ended=lambda: True, stop=threading.Event(), renews=True)
    one = delivery(planned, said, patience)
    for _ in range(8):
        one.spans(batch())
        time.sleep(0.1)
    assert (one.sent, one.lost) == (24, 0)


def test_metrics_are_sent_anew_each_time_and_only_the_last_ones_are_repeated() -> None:
    totals = Totals()
    totals.of_rank(Identity("5f1e", 0, 0, {}))
    data, said = metrics_data(totals, 7), list[str]()
    count = points(data)
    planned = Planned(DOWN, DOWN, ACCEPTED)
    one = delivery(planned, said)
    one.metrics(data, last=False)
    assert (len(planned.got), one.sent, one.lost, one.is_given_up) == (1, 0, count, False)
    one.metrics(data, last=True)
    assert (len(planned.got), one.sent, one.lost) == (3, count, 0)
    assert list(success([one])) == [f"{count} spans were delivered to the collector"]


def test_many_ranks_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Totals()
    for rank in range(9):
        totals.of_rank(Identity("5f1e", rank, 0, {}))
    data = metrics_data(totals, 7)
    each = points(data) // 9
    monkeypatch.setattr("ddptrace.telemetry.delivery.delivery.REQUEST_POINTS", 2 * each)
    assert [points(part) for part in requests_of(data)] == [2 * each] * 4 + [each]


def test_the_sampler_of_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert batch() == []
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    assert len(batch()) == 3


def test_a_disabled_sdk_is_told_and_not_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(DdptraceError, match="OTEL_SDK_DISABLED is true"):
        batch()


def test_a_limit_of_the_environment_that_is_no_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "long")
    with pytest.raises(DdptraceError, match=r"^OpenTelemetry cannot be used: OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT must"):
        batch()
