"""The process that exports beside a training: the one dies, or the other; and it is met by nobody."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddptrace
from tests.exported_runs import RANKS, STEPS, asking, companions, expected, train, wait_until
from tests.launch import PROGRAMS, command, server
from tests.otlp_receiver import Behaviour, Receiver


@contextlib.contextmanager
def training(folder: Path, environ: dict[str, str], *how: str) -> Iterator[subprocess.Popen[bytes]]:
    """By the real launcher, in the background."""
    with (folder / "said").open("wb") as said:
        argv = command("exported.py", folder / "run", folder, *how, ranks=RANKS)
        process = subprocess.Popen(argv, env=environ, stdout=said, stderr=said, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_what_a_killed_training_recorded_is_delivered_and_the_companion_ends(tmp_path: Path) -> None:
    with Receiver() as receiver:
        argv = [str(PROGRAMS / "exported.py"), str(tmp_path / "run"), str(tmp_path), "killed"]
        environ = asking(receiver.http_url, "http/protobuf")
        with server().started(argv, RANKS, environ, to_the_end=True) as job:
            assert job.statuses(120) == [signal.SIGKILL] * RANKS, job.said
            wait_until(lambda: not companions(tmp_path / "run"))
        wanted = expected(ddptrace.analyze(tmp_path / "run"))
        assert len(wanted) > RANKS * STEPS
        assert Counter(one.item.name for one in receiver.spans()) == Counter(node.name for _, node, _ in wanted)


def test_a_companion_that_is_killed_leaves_the_training_alone(tmp_path: Path) -> None:
    with Receiver() as receiver, training(tmp_path, asking(receiver.http_url, "http/protobuf"), "slowly") as process:
        wait_until(lambda: companions(tmp_path / "run") and receiver.traces)
        (one,) = companions(tmp_path / "run")  # of two ranks only the first has one, and the launcher none
        os.kill(one, signal.SIGKILL)
        assert process.wait(120) == 0, (tmp_path / "said").read_text()
        told = json.loads((tmp_path / "0.json").read_text())
        assert len(told["warnings"]) == 1
        assert "the process that exports telemetry has ended too early" in told["warnings"][0]
        assert len(ddptrace.analyze(tmp_path / "run").steps) == RANKS * STEPS


def test_a_program_under_the_launcher_is_exported_too_and_its_output_ends_with_it(tmp_path: Path) -> None:
    """Whoever waits for the end of the output does not wait for the companion; its own children are all it meets. The
    companion is stopped meanwhile: it cannot end first, however slow the machine is."""
    program, run, may_end = tmp_path / "program.py", tmp_path / "run", tmp_path / "end"
    program.write_text(
        "import os, time, torch\n"
        "model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(9): model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
        f"while not os.path.exists({str(may_end)!r}): time.sleep(0.05)\n"
        "try: os.wait()\n"
        "except ChildProcessError: print('no children')\n"
        "print('endpoint', os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'])\n"
    )
    argv = [sys.executable, "-m", "ddptrace.run", "--out", str(run), str(program)]
    with Receiver() as receiver:
        environ = asking(receiver.grpc_url, "grpc")
        with (
            subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            stopped(run, process.pid) as companion,
        ):
            may_end.touch()
            stdout, stderr = process.communicate(timeout=100)
            assert process.returncode == 0 and companions(run) == [companion]
        assert stdout == f"no children\nendpoint {receiver.grpc_url}\n"
        assert "not all telemetry was delivered" in stderr
        wait_until(lambda: not companions(run))
        is_late = "were not delivered" in (run / "export.log").read_text()  # it was stopped for too long
        assert is_late or Counter(one.item.name.split()[0] for one in receiver.spans())["step"] == 9


@contextlib.contextmanager
def stopped(run: Path, trainer: int) -> Iterator[int]:
    """The process that exports this run; it stands still, once it is nobody's child, and goes on in the end."""
    wait_until(lambda: detached(run, trainer))
    (companion,) = detached(run, trainer)
    os.kill(companion, signal.SIGSTOP)
    try:
        yield companion
    finally:
        os.kill(companion, signal.SIGCONT)


def detached(run: Path, trainer: int) -> list[int]:
    """What exports this run, without the process that the trainer started for it, which forks and ends."""
    parents = {}
    for one in companions(run):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            parents[one] = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
    return [one for one, parent in parents.items() if parent != trainer and parent not in parents]


def test_nothing_is_started_where_nothing_is_asked_for(tmp_path: Path) -> None:
    trained = train(tmp_path, asking("http://127.0.0.1:1", "grpc", SDK_DISABLED="true"))
    assert not (trained.run / "export.log").exists()
    assert trained.warnings == []


def test_a_word_that_is_not_known_is_told_by_one_warning(tmp_path: Path) -> None:
    trained = train(tmp_path, asking("http://127.0.0.1:1", "grpc", TRACES_EXPORTER="jaeger"))
    assert trained.told[1]["warnings"] == []
    (warned,) = trained.told[0]["warnings"]
    assert warned.startswith("ddptrace exports no telemetry: OTEL_TRACES_EXPORTER is 'jaeger'")


@pytest.mark.alone  # what is told within two seconds
def test_metrics_go_on_where_spans_are_stuck(tmp_path: Path) -> None:
    with Receiver() as receiver, Receiver() as dead:
        dead.behaviour = Behaviour(status=404)
        environ = asking(receiver.http_url, "http/protobuf", METRIC_EXPORT_INTERVAL="500")
        environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{dead.http_url}/v1/traces"
        trained = train(tmp_path, environ, "slowly")
        assert len(receiver.metrics) > 3
        assert receiver.traces == []
        assert "it answered 404 Not Found" in trained.warnings[0]
        wait_until(lambda: not companions(trained.run))
