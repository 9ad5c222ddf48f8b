"""A real terminal and a real training, for the tests of `ddptrace watch`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import need
from tests.launch import PROGRAMS, ROOT, environment, server
from tests.ranks import Job, end

PATIENCE_S = 60
WATCH = [sys.executable, "-m", "ddptrace", "watch"]


@dataclass
class Terminal:
    """A tmux server of its own with one pane, in which a shell waits."""

    socket: str

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self.socket, *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-t", "watch", "-l", line)
        self.tmux("send-keys", "-t", "watch", "Enter")

    def press(self, key: str) -> None:
        self.tmux("send-keys", "-t", "watch", key)

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-t", "watch", "-x", str(width), "-y", str(height))

    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "watch")

    def wait(self, *wanted: str) -> str:
        """The first picture that all of these are found in."""
        return self.wait_until(lambda text: all(re.search(one, text) for one in wanted), " and ".join(wanted))

    def wait_until(self, holds: Callable[[str], bool], what: str) -> str:
        until_s = time.monotonic() + PATIENCE_S
        while not holds(text := self.text()):
            assert time.monotonic() < until_s, f"never there: {what}\n{text}"
            time.sleep(0.1)
        return text


@contextmanager
def terminal_in(folder: Path) -> Iterator[Terminal]:
    """Of 80 columns and 24 lines; its shell is in `folder`, and exports a size that was never true."""
    need(shutil.which("tmux"), "tmux (apt-get install tmux)")
    with tempfile.TemporaryDirectory() as short:  # the name of a socket has little room
        one = Terminal(f"{short}/tmux")
        _start(one, folder)
        yield one
        subprocess.run(["tmux", "-S", one.socket, "kill-server"], check=False)


def _start(one: Terminal, folder: Path) -> None:
    setting = {name: value for name, value in environment().items() if name not in ("TMUX", "NO_COLOR")}
    subprocess.run(
        ["tmux", "-S", one.socket, "-f", "/dev/null", "new-session", "-d", "-s", "watch", "-x", "80", "-y", "24",
         "sh"],
        env=setting | {"PS1": "$ ", "TERM": "screen-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "72", "LINES": "20"},
        cwd=folder, check=True,
    )  # fmt: skip


@dataclass
class Training:
    """Two ranks that train until `end`."""

    run: Path
    ranks: Job

    def flag(self, name: str) -> Path:
        return Path(f"{self.run}.{name}")

    def end(self) -> None:
        self.flag("end").touch()

    def kill(self) -> None:
        """Kill both ranks, and what started them."""
        end(self.ranks.launcher)


@contextmanager
def training_in(folder: Path) -> Iterator[Training]:
    """It writes to `run` there."""
    run = folder / "run"
    with server().started([str(PROGRAMS / "watched.py"), str(run)], 2, environment(), to_the_end=False) as ranks:
        yield Training(run, ranks)


def watching(terminal: Terminal) -> None:
    terminal.type(shlex.join([*WATCH, "run"]) + "; echo left with $?")


def steps_in(text: str) -> int:
    found = re.search(r"2 ranks running · ([\d,]+) steps", text)
    return int(found[1].replace(",", "")) if found else 0


def bucket_rows(text: str) -> list[str]:
    return re.findall(r"^  \d+ +[\d.]+ [kM]B .*[█▓]$", text, re.M)


def fits(text: str, width: int, height: int) -> bool:
    lines = text.rstrip("\n").split("\n")
    return len(lines) == height and max(map(len, lines)) <= width and lines[-1].startswith("looks every")


def once(run: Path) -> str:
    done = subprocess.run(
        [*WATCH, str(run), "--once"], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout and done.stderr == ""
    return done.stdout
