"""Two ranks of stock DDP that know nothing of telemetry, exported beside as `OTEL_*` asks: through a real collector to
a real receiver, against the tables of the run."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.telemetry.common_attributes import resource_of
from ddptrace.telemetry.delivery.exports import identities
from tests.exported_runs import RANKS, STEPS, Trained, asking, companions, expected, train, wait_until
from tests.otlp_receiver import Received, Receiver, attributes
from tests.rotel import collector

PEERS = {  # what only all ranks together tell, afterwards
    "ddptrace.comm.wait_for_peers_ns", "ddptrace.comm.transfer_ns", "ddptrace.collective.last_rank",
    "ddptrace.collective.skew_ns",
}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    trained: Trained
    result: Result
    spans: list[Received]
    metrics: list[Received]


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    folder, protocol = tmp_path_factory.mktemp("exported"), request.param
    with Receiver() as receiver, collector(folder, receiver.url(protocol), protocol) as between:
        trained = train(folder, asking(between.url(protocol), protocol))
        result = ddptrace.analyze(trained.run)
        wait_until(lambda: len(receiver.spans()) >= len(expected(result)) and receiver.metrics)
        wait_until(lambda: not companions(trained.run))
        yield Exported(trained, result, receiver.spans(), receiver.points())


def text_of(told: dict[str, Any]) -> str:
    return json.dumps({name: told[name] for name in sorted(told) if name not in PEERS})


def test_every_span_of_the_tables_arrives_once_with_its_times_and_attributes(exported: Exported) -> None:
    zero = exported.result.zero_unix_ns
    arrived = Counter(
        (one.item.name, one.item.start_time_unix_nano - zero, one.item.end_time_unix_nano - zero,
         text_of(attributes(one.item.attributes)))
        for one in exported.spans
    )  # fmt: skip
    wanted = Counter(
        (node.name, node.begin_at_ns, node.end_at_ns, text_of(dict(node.attributes)))
        for _, node, _ in expected(exported.result)
    )
    assert arrived == wanted
    counts = Counter(one.item.name.split()[0] for one in exported.spans)
    assert counts["step"] == RANKS * STEPS == len(exported.result.steps)
    assert counts["bucket"] == len(exported.result.buckets) > RANKS * STEPS
    assert counts["all_reduce"] == sum(row.op == "all_reduce" for row in exported.result.collectives)


def test_spans_hang_together_as_the_tables_say(exported: Exported) -> None:
    names = {one.item.span_id: one.item.name for one in exported.spans}
    assert len(names) == len(exported.spans)
    arrived = Counter((one.item.name, names.get(one.item.parent_span_id)) for one in exported.spans)
    wanted = Counter(
        (node.name, None if parent is None else parent.name) for _, node, parent in expected(exported.result)
    )
    assert arrived == wanted


def test_both_ranks_of_a_step_are_in_one_trace_of_its_own(exported: Exported) -> None:
    traces: dict[bytes, set[tuple[Any, Any]]] = {}
    for one in exported.spans:
        told = attributes(one.item.attributes)
        traces.setdefault(one.item.trace_id, set()).add((told.get("ddptrace.step"), told["ddptrace.rank"]))
    assert sorted(map(sorted, traces.values()), key=str) == sorted(
        [[(step, rank) for rank in range(RANKS)] for step in (*range(STEPS), None)], key=str
    )


def test_each_rank_is_a_resource_of_its_own(exported: Exported) -> None:
    result = exported.result
    who = identities(result, exported.trained.run)
    wanted = {f"{result.run_id}-{rank}": dict(resource_of(who[rank]).attributes) for rank in range(RANKS)}
    for received in (exported.spans, exported.metrics):
        assert {one.resource["service.instance.id"]: one.resource for one in received} == wanted
    for one in exported.spans:
        rank = attributes(one.item.attributes)["ddptrace.rank"]
        assert one.resource["service.instance.id"] == f"{result.run_id}-{rank}"


def test_the_last_metrics_are_those_of_the_whole_run(exported: Exported) -> None:
    counts = {
        one.resource["ddptrace.rank"]: sum(point.count for point in one.item.histogram.data_points)
        for one in exported.metrics if one.item.name == "ddptrace.step.duration"
    }  # fmt: skip
    assert counts == dict.fromkeys(range(RANKS), STEPS)  # of several requests the last one counts


@pytest.mark.alone
def test_the_training_leaves_at_once_and_says_nothing(exported: Exported) -> None:
    assert exported.trained.warnings == []
    assert exported.trained.told[1]["left_s"] < 2.0
    count = len(expected(exported.result))
    assert f"{count:,} spans were delivered to http://127.0.0.1" in exported.trained.log


def test_prometheus_finds_the_numbers_during_the_training_and_a_while_after_it(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = asking("", "grpc", METRICS_EXPORTER="prometheus", EXPORTER_PROMETHEUS_PORT=str(port))
    seen: list[int] = []

    def watch() -> None:
        wait_until(lambda: seen.append(steps_at(port)) or 0 < seen[-1] < STEPS)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        trained = train(tmp_path, environ, "slowly")
        watching.result()
    assert steps_at(port) == STEPS
    assert trained.warnings == []
    assert trained.left_s < 2.0
    wait_until(lambda: not companions(trained.run))


def steps_at(port: int) -> int:
    """Of rank 1, as counted so far."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    found = re.search(r'^ddptrace_step_duration_seconds_count{.*ddptrace_rank="1".*} (\d+)\.0$', text, re.M)
    return int(found[1]) if found else 0
