"""`ddptrace export`: afterwards and beside a run that grows, to a real receiver, a scraper and a file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from telemetry_records import BUCKETS, CALLS, Rank, recording, write_manifest

from ddptrace.cli import main
from ddptrace.record import directory
from ddptrace.schema import META
from tests.exported_runs import export, wait_until
from tests.launch import environment, in_background, in_foreground
from tests.otlp_receiver import Behaviour, Receiver, attributes

STEPS = 6
BOTH = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
COUNTS = {"step": 2 * STEPS, "bucket": 2 * STEPS * BUCKETS, "all_reduce": 2 * STEPS * CALLS}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for rank in (0, 1):
        with recording(root, rank) as one:
            one.steps(0, STEPS)
    write_manifest(root)
    return root


def counts(receiver: Receiver) -> dict[str, int]:
    found = Counter(one.item.name.split()[0] for one in receiver.spans())
    return {name: found[name] for name in COUNTS}


@contextmanager
def exporting(
    run: Path, *arguments: object, started_as: Callable[[list[str]], list[str]] = in_foreground
) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "ddptrace", "export", str(run), *map(str, arguments)]
    process = subprocess.Popen(
        started_as(argv), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], with_signal: signal.Signals | None = None) -> tuple[int, str]:
    if with_signal is not None:
        process.send_signal(with_signal)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@BOTH
def test_a_run_that_is_over_is_delivered_whole(run: Path, receiver: Receiver, protocol: str) -> None:
    done = export(run, "--otlp", receiver.url(protocol), "--protocol", protocol)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert counts(receiver) == COUNTS
    spans, points = re.findall(r"([\d,]+) (?:spans|metric points) were delivered to http://127", done.stderr)
    assert int(spans) == len(receiver.spans())
    assert int(points) > 50
    steps = [
        sum(point.count for point in one.item.histogram.data_points)
        for one in receiver.points() if one.item.name == "ddptrace.step.duration"
    ]  # fmt: skip
    assert steps == [STEPS, STEPS]


def test_sending_twice_gives_the_same_spans_and_following_does_too(
    run: Path, receiver: Receiver, tmp_path: Path
) -> None:
    """Whatever way they go: over HTTP, by following, or into a file."""
    assert export(run, "--otlp", receiver.http_url).returncode == 0
    once = {one.item.span_id for one in receiver.spans()}
    assert export(run, "--otlp", receiver.http_url, "--follow", "--host", "h").returncode == 0
    file = tmp_path / "out.jsonl"
    assert export(run, "--otlp-json", file).returncode == 0
    assert {one.item.span_id for one in receiver.spans()} == once
    assert len(receiver.spans()) == 2 * len(once)
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    written = [
        span["spanId"] for request in requests for resource in request.get("resourceSpans", ())
        for scope in resource["scopeSpans"] for span in scope["spans"]
    ]  # fmt: skip
    assert {bytes.fromhex(one) for one in written} == once
    assert sum("resourceMetrics" in request for request in requests) == 1


def test_afterwards_a_collective_tells_who_was_last(run: Path, receiver: Receiver) -> None:
    assert export(run, "--otlp", receiver.http_url).returncode == 0
    told = [attributes(one.item.attributes) for one in receiver.spans() if one.item.name.startswith("all_reduce ")]
    assert all("ddptrace.collective.last_rank" in one for one in told)


def test_only_the_ranks_of_a_host_are_delivered_where_it_is_named(run: Path, receiver: Receiver) -> None:
    meta = directory.read_json(run / "rank-00001" / META) or {}
    directory.write_meta(run / "rank-00001", meta | {"host": "other"})
    assert export(run, "--otlp", receiver.http_url, "--host", "other").returncode == 0
    assert {one.resource["ddptrace.rank"] for one in receiver.spans()} == {1}
    assert counts(receiver)["step"] == STEPS


def test_a_run_is_awaited_followed_while_it_grows_and_said_to_be_over(tmp_path: Path, receiver: Receiver) -> None:
    root = tmp_path / "run"
    with exporting(root, "--follow", "--otlp", receiver.grpc_url, "--protocol", "grpc") as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        rank = Rank(root)
        directory.write_meta(rank.folder, (directory.read_json(rank.folder / META) or {}) | {"world_size": 1})
        write_manifest(root)
        rank.steps(0, STEPS)
        wait_until(lambda: counts(receiver)["step"] == STEPS - 1)  # the last one may not be whole yet
        rank.steps(STEPS, STEPS + 1)
        rank.recorder.close()
        code, said = ended(process)
    assert code == 0, said
    assert f"exporting {root}, which does not exist yet, to http://127.0.0.1" in first
    assert f"{root} has ended\n" in said
    assert counts(receiver)["step"] == STEPS + 1


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_who_follows_ends_in_order_when_asked_to(tmp_path: Path, receiver: Receiver, word: signal.Signals) -> None:
    root = tmp_path / "run"
    with recording(root) as rank:
        write_manifest(root)
        rank.steps(0, STEPS)
        with exporting(root, "--follow", "--otlp", receiver.http_url) as process:
            wait_until(lambda: counts(receiver)["step"] > 0)
            code, said = ended(process, word)
    assert code == 0, said
    assert "has ended" not in said
    assert f"{len(receiver.spans())} spans were delivered" in said
    assert receiver.metrics  # for the first and last time


def test_in_the_background_of_a_shell_it_goes_on_after_ctrl_c(tmp_path: Path, receiver: Receiver) -> None:
    root = tmp_path / "run"
    with recording(root) as rank:
        write_manifest(root)
        rank.steps(0, STEPS)
        with exporting(root, "--follow", "--otlp", receiver.http_url, started_as=in_background) as process:
            wait_until(lambda: counts(receiver)["step"] == STEPS - 1)
            process.send_signal(signal.SIGINT)
            rank.steps(STEPS, 2 * STEPS)
            wait_until(lambda: counts(receiver)["step"] == 2 * STEPS - 1)
            assert ended(process, signal.SIGTERM)[0] == 0


def test_metrics_of_a_run_that_is_over_are_served_until_asked_to_stop(run: Path) -> None:
    with exporting(run, "--prometheus", 0) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        (url,) = re.findall(
            r"serving the metrics of .* at (http://127\.0\.0\.1:\d+/metrics); press Ctrl-C to stop", said
        )
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        assert len(re.findall(rf"^ddptrace_step_duration_seconds_count{{.*}} {STEPS}\.0$", text, re.M)) == 2
        assert ended(process, signal.SIGTERM) == (0, "")


def test_what_was_refused_is_counted_and_told_by_the_exit_code(run: Path, receiver: Receiver) -> None:
    receiver.behaviour = Behaviour(refuse_spans=2, message="too old")
    done = export(run, "--otlp", receiver.http_url)
    assert done.returncode == 5
    total = len(receiver.spans())
    assert f"Error: 2 of {total} spans were not delivered to {receiver.http_url} (too old)\n" in done.stderr


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["export", *map(str, arguments)])
    return done.exit_code, done.stderr


def test_who_takes_nothing_is_asked_for_a_while_and_then_it_is_said_what_to_do(
    run: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptrace.cli.export.PATIENCE_S", 1.5)
    receiver.behaviour = Behaviour(status=503)
    code, said = command(run, "--otlp", receiver.http_url)
    assert code == 5
    told = r"Error: ([\d,]+) of \1 spans and ([\d,]+) of \2 metric points were not delivered to [^ ]+ \(it answered 503"
    assert re.search(told, said)
    assert said.count("it answered 503") == 2  # once when it began, and once at the end
    assert said.count("; retrying for up to 1.5 s; press Ctrl-C to stop\n") == 1
    assert f"`ddptrace export {run}` delivers it" in said
    assert len(said.splitlines()) == 2  # points meet the same trouble: that is told at the end


def test_a_collector_without_metrics_gets_the_spans_all_the_same_and_at_once(run: Path, receiver: Receiver) -> None:
    receiver.behaviour = Behaviour(no_metrics=True)
    for protocol, why in (("http/protobuf", "it answered 404 Not Found"), ("grpc", "unimplemented: Method not found!")):
        began = time.monotonic()
        code, said = command(run, "--otlp", receiver.url(protocol), "--protocol", protocol)
        assert (code, counts(receiver)) == (5, COUNTS)
        assert re.search(rf"Error: ([\d,]+) of \1 metric points were not delivered to .* \({why}\)", said)
        assert time.monotonic() - began < 20  # not the half minute of one that may come back
        receiver.traces.clear()


def test_one_that_is_followed_and_over_is_not_waited_for_without_end(
    run: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptrace.cli.export.PATIENCE_S", 1.0)
    monkeypatch.setattr("ddptrace.telemetry.delivery.exports.LEFT_NS", 0)  # of processes that cannot be asked
    receiver.behaviour = Behaviour(status=503)
    code, said = command(run, "--otlp", receiver.http_url, "--follow")
    assert code == 5
    assert re.search(r"Error: ([\d,]+) of \1 spans and ([\d,]+) of \2 metric points were not delivered", said)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no destination is given; give --otlp URL, --prometheus PORT or --otlp-json FILE, or set OTEL_"),
        (
            ("--otlp", "localhost:4317"),
            "--otlp localhost:4317 is not the address of a collector; give one like http://",
        ),
        (("--otlp", "http://a:b"), "--otlp http://a:b is not the address"),
        (("--otlp-json", "/no/such/file"), "cannot write /no/such/file: No such file or directory; give --otlp-json"),
    ],
)
def test_a_mistake_is_told_in_one_line(run: Path, arguments: tuple[str, ...], sentence: str) -> None:
    code, said = command(run, *arguments)
    assert code == 1
    assert said.startswith(f"Error: {sentence}")
    assert len(said.splitlines()) == 1


def test_a_directory_without_a_run_and_a_port_in_use_are_told(run: Path, tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "empty").mkdir()
    code, said = command(tmp_path / "empty", "--otlp", receiver.http_url)
    assert (code, len(said.splitlines())) == (1, 1)
    code, said = command(run, "--prometheus", receiver.grpc_port)
    assert (code, len(said.splitlines())) == (1, 1)
    assert f"port {receiver.grpc_port}" in said


def test_the_environment_says_where_to_where_nothing_else_does(
    run: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert command(run)[0] == 0
    assert counts(receiver) == COUNTS
    assert receiver.metrics == []
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    done = CliRunner().invoke(main, ["export", str(run)])
    assert done.stdout.count('"ddptrace.span.kind": "bucket"') == COUNTS["bucket"]
    assert len(receiver.traces) == 1


@pytest.mark.parametrize(
    "missing", ["requests", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.metrics.export"]
)
def test_without_the_extra_one_sentence_says_what_to_install(run: Path, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from ddptrace.cli import main; main()"
    argv = [sys.executable, "-c", program, "export", str(run), "--otlp", "http://localhost:4318"]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: exporting needs {missing}, which is not installed: pip install 'ddptrace[telemetry]'\n"
    )


def test_no_thread_is_left_of_it(run: Path, receiver: Receiver) -> None:
    before = set(threading.enumerate())
    assert command(run, "--otlp", receiver.http_url, "--follow")[0] == 0
    mine = [one for one in set(threading.enumerate()) - before if one.name.startswith("ddptrace")]
    assert mine == []
