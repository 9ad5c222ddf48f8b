"""The exporter's thread beside a training: it exports, is bounded in time, and never hurts."""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ddptrace
from ddptrace.errors import TraceStateError
from ddptrace.load.run import read_run
from ddptrace.record import reader
from ddptrace.schema import Kind
from ddptrace.telemetry.spans import exporter
from ddptrace.telemetry.spans.exporter import Exporter
from tests.unit.kept_records import give_way
from tests.unit.telemetry_records import BUCKETS, CALLS, Rank, write_manifest

STEPS = 10


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PERIOD_S", 0.02)
    monkeypatch.setattr(exporter, "STOP_S", 2.0)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    one = Rank(tmp_path)
    write_manifest(tmp_path)
    yield one
    one.recorder.close()


def provider_of(target: SpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(target))
    return provider


def train(rank: Rank, provider: TracerProvider) -> Exporter:
    """A whole training, up to the moment at which the trace ends."""
    one = Exporter(lambda: rank.folder, provider)
    one.start()
    for k in range(STEPS):
        rank.steps(k, k + 1)
        time.sleep(0.03)
    rank.recorder.close()
    return one


def names(spans: Sequence[ReadableSpan]) -> Counter[str]:
    return Counter(span.name.split()[0] for span in spans)


def test_everything_is_exported_once_by_the_time_it_stops(rank: Rank, quick: None) -> None:
    memory = InMemorySpanExporter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(rank, provider_of(memory)).stop()
    counts = names(memory.get_finished_spans())
    assert counts["step"] == STEPS
    assert counts["bucket"] == STEPS * BUCKETS
    assert counts["all_reduce"] == STEPS * CALLS
    ids = {span.context.span_id for span in memory.get_finished_spans() if span.context}
    assert len(ids) == len(memory.get_finished_spans())


def test_where_no_thread_can_be_started_the_training_goes_on_without_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for refused, warned in (("ddptrace-telemetry", "exports no spans"), ("ddptrace-recorder", "without a trace")):
        memory = InMemorySpanExporter()
        with pytest.warns(RuntimeWarning, match="can't start new thread") as told:
            with ddptrace.trace(tmp_path / refused, tracer_provider=provider_of(memory)):
                torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        assert [warned in str(one.message) for one in told] == [True] and told[0].filename == __file__
        assert not memory.get_finished_spans()
    assert read_run(tmp_path / "ddptrace-telemetry").ranks[0].clean


def test_spans_come_while_the_training_still_runs(rank: Rank, quick: None) -> None:
    memory = InMemorySpanExporter()
    one = Exporter(lambda: rank.folder, provider_of(memory))
    one.start()
    rank.steps(0, 6)
    deadline = time.monotonic() + 20
    while names(memory.get_finished_spans())["step"] < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert names(memory.get_finished_spans())["step"] == 5
    rank.recorder.close()
    one.stop()
    assert names(memory.get_finished_spans())["step"] == 6


def test_steps_that_lie_on_the_disk_alone_are_counted_where_there_is_no_time(rank: Rank) -> None:
    # GIVEN an exporter that has given out some steps, and whose time is up when the trace ends
    one = Exporter(lambda: rank.folder, TracerProvider())
    rank.steps(0, 10)
    one._look(final=False)
    for k in range(10, 6010, 100):  # more than one file of records
        rank.steps(k, k + 100)
        give_way(rank.recorder)
    rank.recorder.close()
    one._deadline = time.monotonic()
    one._look(final=True)
    # THEN it says how many there are all the same
    assert one._complaint() == (
        "ddptrace: the spans of 6001 of 6010 steps were not exported; the run directory has everything"
    )


def test_files_that_cannot_be_read_for_a_moment_cost_nothing(
    rank: Rank, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, refusals = reader.read_regular, iter([True, True, True])

    def refused(path: Path, most_nbytes: int) -> bytes:
        if next(refusals, False):
            raise OSError(5, "Input/output error")
        return read(path, most_nbytes)

    monkeypatch.setattr(reader, "read_regular", refused)
    memory = InMemorySpanExporter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(rank, provider_of(memory)).stop()
    assert next(refusals, None) is None
    assert names(memory.get_finished_spans())["step"] == STEPS


def test_records_that_were_lost_are_told_in_the_same_warning(rank: Rank, quick: None) -> None:
    memory = InMemorySpanExporter()
    one = Exporter(lambda: rank.folder, provider_of(memory))
    one.start()
    rank.steps(0, 5)
    for _ in range(3):
        rank.recorder.event(Kind.DONE, 0, 0, 1, 1, 2**70)
    rank.recorder.close()
    with pytest.warns(RuntimeWarning, match=r"^ddptrace: 3 records were lost, so spans are incomplete") as said:
        one.stop()
    assert len(said) == 1
    assert names(memory.get_finished_spans())["step"] == 5


class Raising(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("the collector is on fire")


class RaisingProcessor(SpanProcessor):
    def on_start(self, span: Span, parent_context: object = None) -> None:
        raise RuntimeError("no such thing")


class Blocking(SpanExporter):
    def __init__(self) -> None:
        self.release = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.release.wait(60)
        return SpanExportResult.SUCCESS


def test_an_exporter_that_raises_hurts_nobody(rank: Rank, quick: None) -> None:
    train(rank, provider_of(Raising())).stop()  # the SDK itself logs what its exporter did


def test_a_provider_that_raises_is_told_in_one_warning(rank: Rank, quick: None) -> None:
    provider = TracerProvider()
    provider.add_span_processor(RaisingProcessor())
    one = train(rank, provider)
    with pytest.warns(
        RuntimeWarning, match=r"spans of 10 of 10 steps were not exported \(RuntimeError: no such thing\)"
    ) as said:
        one.stop()
    assert len(said) == 1


def test_a_provider_that_gives_no_tracer_is_told_in_one_warning(rank: Rank, quick: None) -> None:
    class Refusing(TracerProvider):
        def get_tracer(self, *_: object, **__: object) -> NoReturn:  # type: ignore[override]
            raise RuntimeError("no such thing")

    one = train(rank, Refusing())
    with pytest.warns(
        RuntimeWarning, match=r"spans of 10 of 10 steps were not exported \(RuntimeError: no such thing\)"
    ) as said:
        one.stop()
    assert len(said) == 1


@pytest.mark.parametrize("processor", [SimpleSpanProcessor, BatchSpanProcessor])
def test_an_exporter_that_blocks_delays_the_end_by_a_bounded_time(
    rank: Rank,
    quick: None,
    processor: type[SimpleSpanProcessor] | type[BatchSpanProcessor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ddptrace.telemetry.spans.emitter.FLUSH_EVERY", 8)
    blocking = Blocking()
    provider = TracerProvider()
    provider.add_span_processor(processor(blocking))
    one = train(rank, provider)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="was still busy 2 s after the end of training") as said:
        one.stop()
    assert time.monotonic() - begin < 20  # not the exporter's minute
    assert len(said) == 1
    blocking.release.set()


def test_what_there_is_no_time_for_at_the_end_is_counted(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "STOP_S", 0.3)
    monkeypatch.setattr(exporter, "PERIOD_S", 60.0)

    class Slow(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            time.sleep(0.005)
            return SpanExportResult.SUCCESS

    one = Exporter(lambda: rank.folder, provider_of(Slow()))
    one.start()
    rank.steps(0, 40)
    rank.recorder.close()
    with pytest.warns(RuntimeWarning, match=r"of 40 steps were not exported|was still busy"):
        one.stop()


def test_a_program_that_turns_warnings_into_errors_leaves_the_trace_all_the_same(
    rank: Rank, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(RaisingProcessor())
    one = train(rank, provider)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.stop()
    assert "were not exported" in capsys.readouterr().err


def test_a_folder_that_never_was_is_a_warning_at_most(tmp_path: Path, quick: None) -> None:
    one = Exporter(lambda: tmp_path / "rank-00000", TracerProvider())
    one.start()
    one.stop()


def test_something_that_is_no_provider_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceStateError, match="tracer_provider='jaeger' is not an OpenTelemetry TracerProvider"):
        Exporter(lambda: tmp_path, "jaeger")  # type: ignore[arg-type]


def test_its_thread_is_a_daemon_with_a_name(rank: Rank) -> None:
    one = Exporter(lambda: rank.folder, TracerProvider())
    one.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "ddptrace-telemetry"]
    assert thread.daemon
    rank.recorder.close()
    one.stop()
    assert not thread.is_alive()
