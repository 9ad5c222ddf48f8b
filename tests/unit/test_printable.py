"""What a run says reaches a terminal as words to be read, and nothing else: one place decides."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import ddptrace
from ddptrace.cli import main
from ddptrace.cli.say import as_json_bytes, say, say_json
from ddptrace.errors import DdptraceError, printable
from tests.mutants.hostile import BIDIRECTIONAL, EVERY, TERMINAL, obeyed

PACKAGE = Path(ddptrace.__file__).parent
SPEAKERS = {
    "cli/say.py": "the one way",
    "cli/analyze.py": "click's bar of progress, which quotes nothing",
    "cli/__init__.py": "sets how the streams encode",
    "render/watch/screen.py": "rich's screen, whose text is printable piece by piece",
    "telemetry/environment.py": "warnings of a training",
    "telemetry/companion/process.py": "its log",
    "telemetry/delivery/targets.py": "OpenTelemetry's own exporter, in ASCII",
    "tracing.py": "a warning of a training",
    "capture/surface.py": "a warning of a training",
    "reducer/observer.py": "a warning of a training",
    "capture/session.py": "a warning of a training",
    "capture/profiler/windows.py": "a warning of a training, which quotes nothing",
    "run/options.py": "the launcher",
    "run/recording.py": "the launcher",
    "figures/browser.py": "a process of ours, whose words come back as an error",
}
"""Files that print, warn or take hold of a stream, and why. Each says what it quotes through `printable`."""
SAYS = re.compile(r"click\.(echo|secho|echo_via_pager|progressbar)|print|sys\.(stdout|stderr)|warnings\.warn")


@pytest.mark.parametrize("name", EVERY)
def test_a_printable_text_is_one_line_that_is_obeyed_by_nobody(name: str) -> None:
    shown = printable(EVERY[name])
    assert obeyed(shown) is None and "\n" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb", r"a\nb"),
        ("\u202egpj", r"\u202egpj"),
        ("a\u200bb", r"a\u200bb"),
        ("\udc9b", r"\udc9b"),
        ("\U000e0041", r"\U000e0041"),
        ("é à ﷽ 漢 ñ Ω", "é à ﷽ 漢 ñ Ω"),
        ("e\u0301", "e\u0301"),
        ("กี่ שָׁ", "กี่ שָׁ"),
    ],
)
def test_what_would_act_is_shown_as_an_escape_and_what_people_write_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_marks_that_pile_up_over_one_letter_are_cut() -> None:
    assert printable("Z" + "\u0301" * 200) == "Z" + "\u0301" * 4 + r"\u0301" * 196


@pytest.mark.parametrize("name", TERMINAL | BIDIRECTIONAL)
def test_the_message_of_an_error_is_printable_whoever_prints_it(name: str) -> None:
    assert str(DdptraceError(f"{EVERY[name]} is no run")) == f"{printable(EVERY[name])} is no run"


@pytest.mark.parametrize("name", EVERY)
def test_json_that_is_printed_means_the_same_and_is_obeyed_by_nobody(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_json({"name": EVERY[name]})
    shown = capsys.readouterr().out
    assert obeyed(shown) is None and shown.count("\n") == 1
    assert json.loads(shown) == {"name": EVERY[name]}


def test_json_is_printed_as_it_is_encoded_where_it_holds_nothing_odd(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"é": [1, 2.5, None, "漢字 \U0001f600"]}
    say_json(value)
    assert capsys.readouterr().out.encode() == as_json_bytes(value) + b"\n"


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\n  two \x1b[31m\n")
    assert capsys.readouterr().out == "one\n  two \\x1b[31m\n\n"


def said(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "arguments",
    [["{}"], ["analyze", "{}"], ["analyze", "--jobs", "{}", "run"], ["watch", "--once", "{}"], ["diff", "{}", "{}"]],
    ids=" ".join,
)
@pytest.mark.parametrize("name", sorted(set(TERMINAL | BIDIRECTIONAL) - {"nothing"}))
def test_what_was_typed_is_not_obeyed_when_it_is_quoted(arguments: list[str], name: str) -> None:
    done = said(*(one.format(EVERY[name]) for one in arguments))
    assert done.exit_code in (1, 2) and obeyed(done.stderr) is None
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_group_without_a_command_still_shows_its_help() -> None:
    assert "Commands:\n" in said("bench").output


def speaking(file: Path) -> Iterator[str]:
    """Names of what it calls or takes hold of that leads to a terminal."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call | ast.Attribute):
            name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
            if SAYS.fullmatch(name):
                yield name


def test_nothing_else_speaks_to_a_terminal() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if not re.match(r"bench|cli/bench", str(file.relative_to(PACKAGE)))]
    found = {str(file.relative_to(PACKAGE)): set(speaking(file)) for file in files}
    assert {name: names for name, names in found.items() if names and name not in SPEAKERS} == {}


def test_nobody_is_listed_who_says_nothing() -> None:
    assert {name for name in SPEAKERS if not set(speaking(PACKAGE / name))} == set()
