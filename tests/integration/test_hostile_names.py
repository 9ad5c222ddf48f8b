"""A training in which everything is named to harm whoever shows it, and everything that shows it."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ddptrace
from ddptrace import figures
from ddptrace.errors import printable
from ddptrace.telemetry.common_attributes import TEXT_MAX
from ddptrace.telemetry.delivery.exports import scraped, totals_of
from tests.conftest import need
from tests.devtools import Browser
from tests.launch import ROOT, environment, torchrun
from tests.mutants import bases
from tests.mutants.commands import COMMANDS, Command, Place, cli
from tests.mutants.hostile import BIDIRECTIONAL, FORGED, MARKUP, TERMINAL, obeyed
from tests.mutants.trial import ANSWERED, judgement
from tests.otlp_receiver import Receiver
from tests.perfetto import ask

NAMES: Final = {
    "terminal": "".join(TERMINAL.values()).replace("\0", ""),  # torch ends a name there
    "bidirectional": "".join(BIDIRECTIONAL.values()),
    "markup": "".join(MARKUP.values()),
    "long": "long " * 20_000,
}
DRAWING: Final = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?(?:25|1049)[hl]|\x1b\[[\d;]*[HJK]|\r")
"""Colours, the screen of its own, the cursor, and the bar of progress: what rich and click draw with."""
PATIENCE_S: Final = 120


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """The name, and a run in which all is called so. The folder is too, as far as a folder can be. Its path is always
    as long: where a line of it is broken could otherwise stand what a forged line begins with."""
    name = NAMES[request.param]
    with tempfile.TemporaryDirectory(prefix="named") as base:
        folder = Path(base) / name.replace("/", "_")[:60]
        folder.mkdir()
        torchrun("hostile_names.py", folder / "run", json.dumps(name))
        yield name, folder / "run"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    bases.ddp(folder)
    return folder / "ddp"


@pytest.mark.parametrize("command", [form for forms in COMMANDS for form in forms], ids=lambda one: one.__name__)
def test_every_command_shows_it_and_obeys_nothing(
    named: tuple[str, Path], command: Command, before: Path, tmp_path: Path
) -> None:
    """As it judges a mutant: no sign that a terminal obeys, no forged line, JSON that is JSON, no element of markup."""
    need(find_spec("hta") or "hta" not in command.__name__, "HTA (pip install 'ddptrace[hta]')")
    outcome, why, more = judgement(command, Place(named[1], before, tmp_path))
    assert outcome == ANSWERED, f"{why}: {more}"


def printed(*arguments: object) -> str:
    said = cli(*arguments)
    assert said.code == 0 and said.error is None, said
    return said.stdout.decode()


def test_the_summary_names_what_is_called_so_as_an_escape(named: tuple[str, Path], tmp_path: Path) -> None:
    name, run = named
    shown = "".join(printed("analyze", run, "-o", tmp_path).split())
    assert "".join(printable(f"exception {name}"[:20]).split()) in shown


def test_json_holds_the_names_themselves(named: tuple[str, Path], tmp_path: Path) -> None:
    name, run = named
    shown = printed("analyze", run, "--json", "-o", tmp_path)
    content = json.loads(shown)
    assert {row["host"] for row in content["ranks"]} == {f"host {name}"}
    parameters = {one for row in content["buckets"] for one in row["parameters"]}
    dotless = name.replace(".", "_")
    assert f"module {dotless}.parameter {dotless}" in parameters
    assert obeyed(shown) is None


# Where terminals are terminals ---------------------------------------------------------------------------------------


def on_a_terminal(arguments: Sequence[object], keys: bytes = b"") -> str:
    """What a command sends to a terminal of 100 columns, standard error too."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environ = {name: value for name, value in environment().items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "ddptrace", *map(str, arguments)],
        env=environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}, cwd=ROOT,
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    try:
        return b"".join(_read(leader, keys)).decode()
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _read(leader: int, keys: bytes) -> Iterator[bytes]:
    until = time.monotonic() + PATIENCE_S
    while select.select([leader], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError:  # it has closed its end
            return
        if not piece:
            return
        yield piece
        if keys:
            os.write(leader, keys)
            keys = b""
    raise AssertionError("it does not end")


ON_A_TERMINAL: Final = "analyze", "analyze --json", "diagnose", "traffic", "watch --once", "watch"


@pytest.mark.parametrize("command", ON_A_TERMINAL)
def test_a_terminal_gets_nothing_but_what_we_draw_with(named: tuple[str, Path], command: str, tmp_path: Path) -> None:
    _, run = named
    more = ["-o", tmp_path] if "analyze" in command else []
    shown = on_a_terminal([*command.split(), run, *more])
    assert "\x1b" in shown or not command.startswith("watch")
    assert obeyed(DRAWING.sub("", shown)) is None
    assert not any(line.lstrip().startswith(FORGED) for line in DRAWING.sub("", shown).split("\n"))


def test_watch_ends_by_a_key_and_has_drawn_nothing_else(named: tuple[str, Path], tmp_path: Path) -> None:
    """Of a run that goes on, by what is there: the close of one rank is gone."""
    _, run = named
    growing = Path(shutil.copytree(run, tmp_path / "run"))
    for file in growing.glob("rank-*/records-*.bin"):
        os.truncate(file, file.stat().st_size - 64)
    shown = on_a_terminal(["watch", growing], b"q")
    assert "\x1b[?1049h" in shown and obeyed(DRAWING.sub("", shown)) is None


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def analyzed(named: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what is derived from the run."""
    folder = tmp_path_factory.mktemp("analyzed")
    printed("analyze", named[1], "-o", folder)
    return folder


def test_the_trace_loads_in_perfetto_with_the_names_in_it(named: tuple[str, Path], analyzed: Path) -> None:
    content = json.loads(gzip.decompress((analyzed / "trace.json.gz").read_bytes()))
    slices = sum(event["ph"] == "X" for event in content["traceEvents"])
    found = ask(
        analyzed / "trace.json.gz",
        slices="select count(*) from slice",
        hosts="select count(*) from process where name like 'host %rank %'",
        arguments="select count(*) from args where string_value like '%module %'",
    )
    assert found["slices"][0][0] == slices > 50
    assert found["hosts"] == [[2]] and found["arguments"][0][0] > 0


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with Browser(chromium) as browser:
        yield browser


def check_page(browser: Browser, path: Path) -> str:
    """A page runs nothing, asks for nothing and has no element that a name made; its text."""
    seen = browser.open_drawn(path)
    assert (seen.requests, seen.errors) == ([], [])
    assert browser.value("window.owned === undefined")
    assert browser.value("document.querySelectorAll('img, iframe, .owned, [onerror], [onmouseover]').length") == 0
    assert browser.value("getComputedStyle(document.body).display") != "none"
    text: str = browser.value("document.body.innerText")
    assert obeyed(re.sub("[\t\u00a0]", " ", text)) is None
    return text


def test_the_report_shows_the_names_and_obeys_none(named: tuple[str, Path], analyzed: Path, browser: Browser) -> None:
    text = check_page(browser, analyzed / "report.html")
    assert printable(f"exception {named[0]}"[:20]) in text


def test_the_page_of_a_comparison_obeys_none(
    named: tuple[str, Path], before: Path, browser: Browser, tmp_path: Path
) -> None:
    printed("diff", before, named[1], "-o", tmp_path)
    check_page(browser, tmp_path / "diff.html")
    told = (tmp_path / "diff.md").read_text()
    assert obeyed(told) is None
    assert not re.search(r"<[a-zA-Z]|\]\(", told), "Markdown that a reader of it would obey"


def test_the_texts_of_figures_hold_no_markup_of_a_name(named: tuple[str, Path]) -> None:
    for key, figure in figures.every(ddptrace.analyze(named[1])).items():
        shown = "\n".join(texts(json.loads(figure.to_json())))
        assert not re.search(r"<(?!/?b>|br>|/?span|extra>|/extra>)", shown), key
        assert "owned=1>" not in shown and obeyed(shown) is None, key


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(one)


# Telemetry -----------------------------------------------------------------------------------------------------------


def test_prometheus_reads_each_name_as_one_label(named: tuple[str, Path]) -> None:
    name, run = named
    with scraped(totals_of(ddptrace.analyze(run), run), ("127.0.0.1", 0)) as server:
        assert server is not None
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            page = answer.read().decode()
    families = list(text_string_to_metric_families(page))
    assert all(family.name.startswith(("ddptrace", "target")) for family in families)
    labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert f"host {name}"[:TEXT_MAX] in labels


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_gets_the_names_themselves(named: tuple[str, Path], protocol: str) -> None:
    name, run = named
    with Receiver() as receiver:
        printed("export", run, "--otlp", receiver.url(protocol), "--protocol", protocol)
        spans, points = receiver.spans(), receiver.points()
    assert spans and points
    assert f"host {name}"[:TEXT_MAX] in {one.resource["host.name"] for one in (*spans, *points)}


def test_a_file_of_otlp_is_json_line_by_line(named: tuple[str, Path], tmp_path: Path) -> None:
    name, run = named
    printed("export", run, "--otlp-json", tmp_path / "spans.json")
    requests = [json.loads(line) for line in (tmp_path / "spans.json").read_bytes().decode().splitlines()]
    assert f"host {name}"[:TEXT_MAX] in set(texts(requests))


def test_opentelemetrys_own_words_on_the_terminal_are_ascii(
    named: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    done = subprocess.run(
        [sys.executable, "-m", "ddptrace", "export", str(named[1])],
        env=environment(), cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    shown = done.stdout.decode()
    assert shown.isascii() and obeyed(shown) is None and "host" in shown


# A training that says something --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TERMINAL, *BIDIRECTIONAL])
def test_what_a_training_warns_of_is_printable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    from ddptrace.capture.surface import Surface
    from ddptrace.telemetry.environment import warn

    text = (TERMINAL | BIDIRECTIONAL)[name]
    Surface("hooks", lambda *_: None).failed(ValueError(text))
    warn(text, stacklevel=1)
    assert len(recwarn) == 2
    assert all(obeyed(str(one.message)) is None and "\n" not in str(one.message) for one in recwarn)
