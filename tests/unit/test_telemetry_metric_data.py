"""Totals as the SDK's data: encoded by the official encoder, read back, and the same as Prometheus is told."""

from __future__ import annotations

import dataclasses
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import DdptraceError
from ddptrace.live.batch import Identity, Losses
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Kind
from ddptrace.telemetry.metrics.prometheus import label_of, name_of, serve
from ddptrace.telemetry.metrics.totals import Totals, metrics_data
from ddptrace.telemetry.rows import of_result
from tests.made import make_result
from tests.prometheus import DIRECT
from tests.sums import told_by
from tests.unit.made_meetings import met_result

NOW, BEAT = 1_800_000_000_123_456_789, 1_790_000_000_500_000_000
META = {"host": "node0", "pid": 7, "world_size": 4, "versions": {"torch": "2.13.0"}}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def totals() -> Totals:
    """With a point of every instrument."""
    made, result = Totals(), met_result()
    unit = {"unit": "layers.0", "unit_role": "unshard", "dimension": "fsdp"}
    calls = [dataclasses.replace(row, busbw_bytes_per_s=1.5e9) for row in result.collectives]
    others = [dataclasses.replace(row, seq=row.seq + 10**6, bucket=None, **unit) for row in calls]
    calls = [call for pair in zip(calls, others, strict=True) for call in pair]
    result = dataclasses.replace(result, collectives=Table(CollectiveRow, calls))
    for rows in of_result(result):
        made.of_rank(Identity(result.run_id, rows.rank, 0, META))
        made.seen(result.run_id, rows.rank, BEAT)
        made.add(rows)
    return made


def read_back(made: Totals) -> ExportMetricsServiceRequest:
    return ExportMetricsServiceRequest.FromString(encode_metrics(metrics_data(made, NOW)).SerializeToString())


def attributes(point: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in point.attributes}


def metrics(request: ExportMetricsServiceRequest) -> Iterator[tuple[dict[str, Any], metrics_pb2.Metric]]:
    """With the attributes of their resource."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "ddptrace"
            for metric in scope.metrics:
                yield attributes(resource.resource), metric


def points(metric: metrics_pb2.Metric) -> Any:
    return getattr(metric, metric.WhichOneof("data") or "").data_points


def test_a_finished_run_waits_for_one_more_scrape() -> None:
    totals = Totals()
    with serve(totals, 0) as server:
        urllib.request.urlopen(server.url, timeout=10).close()
        assert not server.wait_for_scrape(0)  # that one came before
        waiting = threading.Thread(target=lambda: came.append(server.wait_for_scrape(60)))
        came: list[bool] = []
        waiting.start()
        while not came:
            urllib.request.urlopen(server.url, timeout=10).close()
        waiting.join()
    assert came == [True]


def test_every_instrument_comes_back_with_its_kind_unit_and_meaning_for_every_rank() -> None:
    found = {
        (r["ddptrace.rank"], m.name): (m.WhichOneof("data"), m.unit, m.description)
        for r, m in metrics(read_back(totals()))
    }
    kinds = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}
    expected = {
        (rank, one.name): (kinds[one.kind], one.unit, one.meaning)
        for rank in range(4) for one in INSTRUMENTS if rank == 0 or one.name != "ddptrace.collective.skew"
    }  # fmt: skip
    assert found == expected


def test_values_are_those_of_the_totals() -> None:
    made = totals()
    found = {}
    for _, metric in metrics(read_back(made)):
        for point in points(metric):
            told = attributes(point)
            (instrument,) = [one for one in INSTRUMENTS if one.name == metric.name]
            key = metric.name, told["ddptrace.rank"], *(told.get(name, "") for name in instrument.attributes)
            if instrument.kind is Kind.HISTOGRAM:
                found[key] = point.count, point.sum
                assert list(point.explicit_bounds) == list(instrument.bounds)
                assert sum(point.bucket_counts) == point.count
                assert point.min <= point.sum / point.count <= point.max
            else:
                found[key] = getattr(point, point.WhichOneof("value"))
    assert found == told_by(made)


def test_a_sum_that_otlp_has_no_integer_for_does_not_cost_the_others() -> None:
    made = Totals()
    made.of_rank(Identity("run", 0, 0, {}))
    made.lost("run", 0, Losses(torn=1 << 63, unwritable=7))  # as damaged records add up to
    (dropped,) = [metric for _, metric in metrics(read_back(made)) if metric.name == "ddptrace.records.dropped"]
    told = {attributes(point)["ddptrace.reason"]: point for point in points(dropped)}
    assert (told["torn"].as_double, told["unwritable"].as_int) == (2.0**63, 7)


def test_sums_are_cumulative_from_the_begin_of_the_run() -> None:
    result = met_result()
    for resource, metric in metrics(read_back(totals())):
        kind = metric.WhichOneof("data")
        if kind != "gauge":
            assert getattr(metric, kind).aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        assert kind != "sum" or metric.sum.is_monotonic
        for point in points(metric):
            start = 0 if kind == "gauge" else result.zero_unix_ns  # which has none
            assert (point.start_time_unix_nano, point.time_unix_nano) == (start, NOW)
            told = attributes(point)
            assert (told["ddptrace.run.id"], told["ddptrace.rank"]) == (result.run_id, resource["ddptrace.rank"])


def test_each_rank_is_a_resource_of_its_own() -> None:
    resources = [attributes(one.resource) for one in read_back(totals()).resource_metrics]
    assert [one["service.instance.id"] for one in resources] == [f"{met_result().run_id}-{rank}" for rank in range(4)]
    assert {(one["host.name"], one["process.pid"]) for one in resources} == {("node0", 7)}


def test_a_rank_without_a_step_is_there_and_has_lost_nothing() -> None:
    made = Totals()
    made.of_rank(Identity("run", 0, 0, {}))
    made.seen("run", 0, BEAT)
    found = {metric.name: points(metric) for _, metric in metrics(read_back(made))}
    assert set(found) == {
        "ddptrace.records.dropped", "ddptrace.steps.dropped", "ddptrace.record.time",
    }, "of the run it is told what is known once its first records are read"  # fmt: skip
    assert {point.as_int for point in found["ddptrace.records.dropped"]} == {0}
    assert {point.start_time_unix_nano for point in found["ddptrace.records.dropped"]} == {BEAT}


@pytest.fixture
def scraped() -> Iterator[dict[str, Any]]:
    with serve(totals(), 0) as server:
        yield families(server.url)


def families(url: str) -> dict[str, Any]:
    said = fetch(url, OPENMETRICS)
    return {family.name: family for family in text_string_to_metric_families(said)}


def fetch(url: str, accept: str) -> str:
    with DIRECT.open(urllib.request.Request(url, headers={"Accept": accept}), timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith(accept.split(";")[0])
        return str(answer.read().decode())


NAMES = {
    "ddptrace.step.duration": "ddptrace_step_duration_seconds",
    "ddptrace.phase.time": "ddptrace_phase_time_seconds_total",
    "ddptrace.breakdown.time": "ddptrace_breakdown_time_seconds_total",
    "ddptrace.comm.time": "ddptrace_comm_time_seconds_total",
    "ddptrace.comm.overlap_ratio": "ddptrace_comm_overlap_ratio",
    "ddptrace.comm.wait": "ddptrace_comm_wait_seconds_total",
    "ddptrace.bucket.duration": "ddptrace_bucket_duration_seconds",
    "ddptrace.bucket.exposed.time": "ddptrace_bucket_exposed_time_seconds_total",
    "ddptrace.bucket.hidden.time": "ddptrace_bucket_hidden_time_seconds_total",
    "ddptrace.bucket.size": "ddptrace_bucket_size_bytes",
    "ddptrace.unit.exposed.time": "ddptrace_unit_exposed_time_seconds_total",
    "ddptrace.unit.hidden.time": "ddptrace_unit_hidden_time_seconds_total",
    "ddptrace.unit.io": "ddptrace_unit_io_bytes_total",
    "ddptrace.dimension.exposed.time": "ddptrace_dimension_exposed_time_seconds_total",
    "ddptrace.collective.calls": "ddptrace_collective_calls_total",
    "ddptrace.collective.io": "ddptrace_collective_io_bytes_total",
    "ddptrace.collective.time": "ddptrace_collective_time_seconds_total",
    "ddptrace.collective.bus_bandwidth": "ddptrace_collective_bus_bandwidth_bytes_per_second",
    "ddptrace.collective.wait_for_peers": "ddptrace_collective_wait_for_peers_seconds_total",
    "ddptrace.collective.skew": "ddptrace_collective_skew_seconds",
    "ddptrace.collective.last": "ddptrace_collective_last_total",
    "ddptrace.collective.lateness": "ddptrace_collective_lateness_seconds_total",
    "ddptrace.records.dropped": "ddptrace_records_dropped_total",
    "ddptrace.steps.dropped": "ddptrace_steps_dropped_total",
    "ddptrace.step.last": "ddptrace_step_last",
    "ddptrace.record.time": "ddptrace_record_time_seconds",
    "ddptrace.run.info": "ddptrace_run_info",
}


def test_names_in_prometheus_are_those_of_opentelemetrys_translation(scraped: dict[str, Any]) -> None:
    assert {one.name: name_of(one) for one in INSTRUMENTS} == NAMES
    assert set(scraped) == {name.removesuffix("_total") for name in NAMES.values()}


def test_the_endpoint_tells_what_otlp_tells(scraped: dict[str, Any]) -> None:
    """Labels too: those of each point's attributes, as the translation names them."""
    for _, metric in metrics(read_back(totals())):
        family = scraped[NAMES[metric.name].removesuffix("_total")]
        for point in points(metric):
            labels = {label_of(name): str(value) for name, value in attributes(point).items()}
            told = {
                sample.name: sample.value for sample in family.samples
                if {name: value for name, value in sample.labels.items() if value and name != "le"} == labels
                and sample.labels.get("le", "+Inf") == "+Inf"
            }  # fmt: skip
            name = NAMES[metric.name]
            if metric.WhichOneof("data") == "histogram":
                expected = {f"{name}_count": point.count, f"{name}_sum": point.sum, f"{name}_bucket": point.count}
            else:
                expected = {name: getattr(point, point.WhichOneof("value"))}
            assert told == expected


def test_opentelemetrys_own_exporter_tells_prometheus_the_same() -> None:
    # GIVEN what OpenTelemetry's exporter makes of the data that goes over OTLP
    made = totals()
    reader = PrometheusMetricReader(True, scope_info_enabled=False, registry=CollectorRegistry())
    reader._receive_metrics(metrics_data(made, NOW))
    theirs = {(family.name, family.type): samples_of(family) for family in reader._collector.collect()}
    # THEN all families, types, series and values are those of the endpoint
    with serve(made, 0) as server:
        ours = {(family.name, family.type): samples_of(family) for family in families(server.url).values()}
    assert ours == theirs


def samples_of(family: Any) -> dict[tuple[Any, ...], float]:
    """An empty label is none; bounds are numbers, however they are written."""
    return {
        (sample.name, *sorted((k, float(v) if k == "le" else v) for k, v in sample.labels.items() if v)): sample.value
        for sample in family.samples
    }


def test_an_older_server_gets_the_older_text() -> None:
    with serve(totals(), 0) as server:
        said = fetch(server.url, "text/plain")
    assert "# TYPE ddptrace_phase_time_seconds_total counter" in said


def test_a_scrape_tells_what_is_known_by_then_and_the_port_is_free_again_afterwards() -> None:
    made = Totals()
    made.of_rank(Identity("run", 0, 0, {}))
    with serve(made, 0) as server:
        made.lost("run", 0, Losses(torn=5))
        samples = families(server.url)["ddptrace_records_dropped"].samples
        assert {sample.labels["ddptrace_reason"]: sample.value for sample in samples}["torn"] == 5
        port = int(server.url.rpartition(":")[2].partition("/")[0])
    with serve(made, port) as again:
        assert families(again.url)


def test_a_scrape_never_sees_half_of_a_batch() -> None:
    # GIVEN a rank that is counted step by step while it is scraped
    (rows,) = of_result(make_result(ranks=1, steps=300, buckets=4))
    made = Totals()

    def count() -> None:
        for step in range(300):
            made.add(rows, steps=range(step, step + 1), strays=False)

    counting = threading.Thread(target=count)
    with serve(made, 0) as server:
        counting.start()
        while counting.is_alive():
            told = families(server.url)
            steps = [sample.value for family in told.values() for sample in family.samples
                     if sample.name == "ddptrace_step_duration_seconds_count"]  # fmt: skip
            calls = [sample.value for family in told.values() for sample in family.samples
                     if sample.name == "ddptrace_collective_calls_total"]  # fmt: skip
            # THEN each step has all of its collectives, whenever it is looked at
            assert calls == [5 * count for count in steps]
        counting.join()


def test_a_port_that_is_taken_is_told_in_one_sentence() -> None:
    with serve(Totals(), 0) as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(
            DdptraceError, match=rf"^metrics cannot be served at 127.0.0.1 port {port}: Address already"
        ):
            serve(Totals(), port)
    with pytest.raises(DdptraceError, match=r"port 70000: .*give another port"):
        serve(Totals(), 70_000)


def test_an_address_that_is_not_of_this_machine_is_told() -> None:
    with pytest.raises(DdptraceError, match=r"^metrics cannot be served at 192.0.2.1 port 0: .*; give an address of"):
        serve(Totals(), 0, address="192.0.2.1")
