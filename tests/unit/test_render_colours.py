"""A view on a terminal has the words of the plain one, with colours, and no line that is wider than the terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios

import pytest

from ddptrace.cli.say import show
from ddptrace.render.colours import coloured
from ddptrace.render.terminal import summary_text
from tests.made import make_result

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(text: str, width: int, monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    """What `show` writes to a terminal of this width."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environ}.items():
        monkeypatch.setenv(name, value)
    with os.fdopen(other, "w", encoding="utf-8") as terminal:
        for stream in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, stream, terminal)
            monkeypatch.setattr(sys, f"__{stream}__", terminal)
        show(text)
        terminal.flush()
        written = os.read(main, 2**20).decode()
        monkeypatch.undo()
    os.close(main)
    return written.replace("\r\n", "\n")


def test_a_terminal_has_colours_and_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Look at next\n  warning  Take `bucket_cap_mb=5`.\n  info     ███▌ 12 %\n"
    told = on_terminal(text, 120, monkeypatch)
    assert ESCAPE.sub("", told) == text
    assert "\x1b[1mLook at next" in told and "\x1b[33m  warning" in told
    assert "\x1b[36m`bucket_cap_mb=5`" in told and "\x1b[36m███▌" in told


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    told = on_terminal("Look at next\n  warning  `this`\n", 120, monkeypatch, NO_COLOR="1")
    assert not re.search(r"\x1b\[3\d", told)


def test_elsewhere_a_view_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    text = summary_text(make_result(2, 8, 6))
    show(text)
    assert sys.stdout.getvalue() == text  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 72])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    text = summary_text(make_result(2, 8, 6))
    told = coloured(text, width).plain
    assert told.split() == text.split()
    assert max(map(len, told.split("\n"))) <= width


def test_what_fits_is_left_as_it_is() -> None:
    text = summary_text(make_result(2, 8, 6))
    assert coloured(text, 200).plain == text
