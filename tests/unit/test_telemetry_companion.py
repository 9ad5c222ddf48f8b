"""The process beside a training, and what is said between the two."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from telemetry_records import RUN_ID, Rank, write_manifest

import ddptrace
from ddptrace import tracing
from ddptrace.record import directory
from ddptrace.schema import META
from ddptrace.telemetry.companion import companion
from ddptrace.telemetry.companion.companion import Companion, Training, companion_for
from tests.exported_runs import wait_until
from tests.otlp_receiver import Receiver
from tests.planted_modules import plant

BARE = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(BARE):
        monkeypatch.delenv(name)


def living(root: Path) -> Rank:
    """Its process is this one, on this host."""
    rank = Rank(root)
    meta = directory.read_json(rank.folder / META) or {}
    directory.write_meta(rank.folder, meta | {"host": socket.gethostname(), "pid": os.getpid()})
    write_manifest(root)
    return rank


def warned(action: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        action()
    return [str(one.message) for one in said]


def test_telling_never_waits_for_a_training_that_does_not_read_and_it_hears_the_newest() -> None:
    ours, theirs = socket.socketpair()
    training = Training(theirs)
    telling = threading.Thread(
        target=lambda: [training.tell(done=False, trouble=f"{k} " + 200 * "x") for k in range(5000)], daemon=True
    )
    telling.start()
    telling.join(20)
    assert not telling.is_alive()
    ours.sendall(companion.LEFT)
    ours.settimeout(20)
    assert json.loads(ours.recv(4096))["trouble"].startswith("4999 ")
    training.tell(done=True, trouble=None)
    assert json.loads(ours.recv(4096)) == {"done": True, "trouble": None}
    ours.close()
    theirs.close()


def test_the_last_word_of_one_that_ends_early_is_there_when_the_training_leaves() -> None:
    ours, theirs = socket.socketpair()
    training = Training(theirs)
    training.tell(done=True, trouble="no use")
    ours.settimeout(20)
    assert json.loads(ours.recv(4096)) == {"done": True, "trouble": "no use"}
    ours.close()
    assert training.left.wait(20)
    theirs.close()


@pytest.mark.parametrize(
    ("body", "doing"),
    [
        ("sys.stdin.read(); import time; time.sleep(3)", "starting"),
        ('s.recv(9); s.sendall(b\'{"done": false, "trouble": null}\\n\'); import time; time.sleep(3)', "sending"),
    ],
)
def test_what_it_is_still_doing_is_said_where_there_is_no_trouble(
    body: str, doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = f"import os, sys, socket; os.fork() and os._exit(0); s = socket.socket(fileno=int(sys.argv[-1])); {body}"
    monkeypatch.setattr(companion, "BOOT", boot)
    monkeypatch.setattr(companion, "LEAVE_S", 1.0)
    rank = living(tmp_path)
    one = Companion(tmp_path, rank.folder, BARE, is_first=True)
    (said,) = warned(one.leave)
    assert f"(the process that exports it is still {doing}); delivery goes on" in said
    rank.recorder.close()


def test_it_looks_for_ddptrace_in_the_folder_that_holds_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    monkeypatch.setattr(companion, "BOOT", f"import sys; open({str(folder)!r}, 'w').write(sys.argv[1])")
    rank = living(tmp_path / "run")
    process = Companion(tmp_path / "run", rank.folder, BARE, is_first=True)
    process.drop()
    rank.recorder.close()
    assert folder.read_text() == str(Path(ddptrace.__file__).parents[1])


def test_it_imports_nothing_from_the_current_directory_and_runs_no_startup_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = plant(tmp_path / "planted")
    startup = tmp_path / "startup.py"
    startup.write_text(f"open({str(mark)!r}, 'a')")
    rank = living(tmp_path / "run")
    rank.steps(0, 9)
    monkeypatch.chdir(mark.parent)
    with Receiver() as receiver:
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_url, "OTEL_METRICS_EXPORTER": "none"}
        python = {"PYTHONSTARTUP": str(startup), "PYTHONINSPECT": "1"}
        one = companion_for(tmp_path / "run", rank.folder, 0, BARE | asked | python)
        assert one is not None
        wait_until(lambda: receiver.traces or mark.exists())
        rank.recorder.close()
        assert warned(one.leave) == []
    assert not mark.exists()


@pytest.mark.parametrize("becomes", ["moved", "removed", "replaced"])
def test_a_run_directory_that_goes_away_during_training_is_told(becomes: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    rank = living(root)
    rank.steps(0, 9)
    with Receiver() as receiver:
        environ = BARE | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_url, "OTEL_METRICS_EXPORTER": "none"}
        one = companion_for(root, rank.folder, 0, environ)
        assert one is not None
        wait_until(lambda: receiver.traces)
        shutil.rmtree(root) if becomes == "removed" else root.rename(tmp_path / "elsewhere")
        if becomes == "replaced":
            Rank(root, run_id="ab" * 16).recorder.close()
        wait_until(lambda: _has_said(one))
        (said,) = warned(one.leave)
    assert said.startswith(
        f"ddptrace: the run directory {root} was moved, replaced or removed, and the part that had not"
    )
    assert said.count("`ddptrace export") == 1
    if becomes == "moved":
        assert f"the run directory {root} was moved" in (tmp_path / "elsewhere" / "export.log").read_text()


def _has_said(one: Companion) -> bool:
    try:
        return bool(one._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def test_a_run_directory_that_is_gone_before_it_was_found_is_told(tmp_path: Path) -> None:
    root = tmp_path / "run"
    rank = living(root)
    environ = BARE | {"OTEL_TRACES_EXPORTER": "console"}
    one = companion_for(root, rank.folder, 0, environ)
    assert one is not None
    root.rename(tmp_path / "elsewhere")
    one.left()
    wait_until(lambda: _has_said(one))
    (said,) = warned(one.leave)
    assert said.startswith(f"ddptrace: telemetry was not exported: the run directory {root} was moved")
    rank.recorder.close()


PROGRAM = """
import os, socket, sys
ours, theirs = socket.socketpair()
if os.fork():
    theirs.close()
    print(ours.makefile().readline())
    sys.exit()
if sys.argv[1]:
    sys.modules[sys.argv[1]] = None
from ddptrace.telemetry.companion.process import main
main('nowhere', 'here', '1', '1', str(theirs.fileno()))
"""


@pytest.mark.parametrize(
    ("missing", "environ", "sentence"),
    [
        (
            "opentelemetry.sdk.metrics.export", {},
            "telemetry was not exported: exporting needs opentelemetry.sdk.metrics.export, which is not installed: "
            "pip install 'ddptrace[telemetry]'",
        ),
        (
            "", {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"},
            "telemetry was not exported: OpenTelemetry cannot be used: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a "
            "non-negative integer but got many",
        ),
    ],
)  # fmt: skip
def test_one_that_cannot_begin_says_why_in_its_log_and_to_the_training(
    missing: str, environ: dict[str, str], sentence: str
) -> None:
    argv = [sys.executable, "-c", PROGRAM, missing]
    done = subprocess.run(argv, env=BARE | environ, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"done": True, "trouble": sentence}
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"] {sentence}")


@pytest.mark.parametrize(
    ("missing", "environ"),
    [
        ("opentelemetry.sdk", {"OTEL_TRACES_EXPORTER": "console"}),
        ("grpc", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}),
        ("opentelemetry.exporter.otlp.proto.http", {"OTEL_TRACES_EXPORTER": "otlp"}),
        ("prometheus_client", {"OTEL_METRICS_EXPORTER": "prometheus"}),
    ],
)
def test_a_package_that_is_missing_is_told_before_anything_is_started(
    missing: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    (said,) = warned(lambda: companion_for(tmp_path, tmp_path, 0, BARE | environ))
    needs = f"exporting needs {missing}, which is not installed: pip install 'ddptrace[telemetry]'"
    assert said == f"ddptrace exports no telemetry: {needs}"
    assert list(tmp_path.iterdir()) == []


def test_beside_a_provider_metrics_are_exported_and_spans_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        claim = type("Claim", (), {"root": tmp_path, "rank": 0})

    rank = living(tmp_path)
    rank.steps(0, 3)
    Session.folder = rank.folder  # type: ignore[attr-defined]
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_url)
        one = tracing.companion_of(Session(), spans=False)  # type: ignore[arg-type]
        assert one is not None
        rank.recorder.close()
        one.left()
        wait_until(lambda: _has_said(one) and receiver.metrics)
        assert warned(one.leave) == []
        assert receiver.traces == []
        assert {point.resource["ddptrace.run.id"] for point in receiver.points()} == {RUN_ID}


def test_ranks_that_could_not_say_on_which_host_they_run_are_not_passed_over_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion, "LEAVE_S", 20.0)
    rank, other = living(tmp_path), Rank(tmp_path, 1)
    (other.folder / META).unlink()  # as on a full disk
    rank.steps(0, 3)
    with Receiver() as receiver:
        one = companion_for(tmp_path, rank.folder, 0, BARE | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_url})
        assert one is not None
        for recorder in (rank.recorder, other.recorder):
            recorder.close()
        (said,) = warned(one.leave)
    told = f"rank-00001 did not record the host, and were not exported; `ddptrace export {tmp_path}` delivers"
    assert told in said
