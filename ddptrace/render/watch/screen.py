"""The terminal that a run is watched in: it shows the page of a view, drawn anew whenever asked, and is restored at the
end. The page fits any size."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from ddptrace.errors import printable
from ddptrace.render.watch.parts import (
    breakdown_lines,
    bucket_lines,
    finding_lines,
    head_lines,
    rank_lines,
    unit_lines,
)
from ddptrace.render.watch.view import STYLES, Line, View, status_lines
from ddptrace.units import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ENDS: Final = (b"q", b"Q", b"\x03", b"\x04")
PROMPT: Final = 2
"""Lines below the last view, which else would push its head out of sight."""
PLAIN_WIDTH: Final = 96
"""Where nobody says how wide the paper is."""

BRIEF: Final = 17
"""With fewer lines only what matters most is said."""
ROOMY: Final = 19
"""Lines from which on a blank one stands between sections."""
PAGE_LINES: Final = 50
"""Of a view that is printed."""
LEAST_LINES: Final = (3, 2, 2, 2)
"""Of findings, ranks, buckets and other units, before one of them gets more."""
UNBOUNDED: Final = 10_000

Section = Callable[[int], list[Line]]
"""Gives no more lines than there is room for."""


def is_terminal() -> bool:
    """Whether stdout can be drawn on anew."""
    return _on_terminal() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


class Pages:
    """Where nothing can be drawn anew: each view below the one before. Of a terminal it has the colours."""

    keys: Final = False

    def __init__(self) -> None:
        self._console = _console()
        self._pages = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def draw(self, view: View) -> None:
        if self._pages:
            self._console.print()
        self._console.print(snapshot(view, self._console.width))
        self._console.file.flush()
        self._pages += 1

    def wait(self, seconds: float) -> bool:
        """Nobody can end it but by a signal."""
        time.sleep(seconds)
        return False


class Screen:
    """A screen of its own while it is entered; the last view stays on the normal one. `keys`: they are heard."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = _console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._view: View | None = None
        self._exit = ExitStack()
        self._woken, self._wake = os.pipe()
        self._is_to_stop = False
        self._modes: list[Any] = []
        self.keys = sys.stdin is not None and sys.stdin.isatty()

    def __enter__(self) -> Self:
        self._exit.callback(self._print_last)
        self._listen()
        self._exit.enter_context(self._live)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def draw(self, view: View) -> None:
        self._view = view
        width, height = self._size()
        self._live.update(screen(view, width, height), refresh=True)

    def wait(self, seconds: float) -> bool:
        """For so long, drawing anew where the window changed or was away; whether the user wants to end."""
        until = time.monotonic() + seconds
        files = [self._woken, *([sys.stdin.fileno()] if self.keys else [])]
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(files, [], [], left)
            if self._woken in ready and os.read(self._woken, 4096) and self._view is not None:
                self._stop_if_asked()
                self.draw(self._view)
            if len(files) > 1 and files[1] in ready and self._ends(os.read(files[1], 64)):
                return True
        return False

    def _ends(self, typed: bytes) -> bool:
        """An end of file too: nobody is there."""
        return not typed or any(key in typed for key in ENDS)

    def _listen(self) -> None:
        """For keys, for changes of the window and for Ctrl-Z."""
        os.set_blocking(self._wake, False)
        before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._exit.callback(signal.set_wakeup_fd, before)
        self._hear(signal.SIGWINCH, lambda *_: None)
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            self._hear(signal.SIGTSTP, self._ask_to_stop)
        if self.keys:
            import termios

            self._modes = termios.tcgetattr(sys.stdin)
            self._exit.callback(self._leave_keys)
            self._hear_keys()

    def _hear(self, number: signal.Signals, handler: Callable[[int, object], None]) -> None:
        self._exit.callback(signal.signal, number, signal.signal(number, handler))

    def _hear_keys(self) -> None:
        """One by one and unseen."""
        import tty

        tty.setcbreak(sys.stdin)

    def _leave_keys(self) -> None:
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)

    def _ask_to_stop(self, signum: int, frame: object) -> None:
        self._is_to_stop = True

    def _stop_if_asked(self) -> None:
        """By Ctrl-Z: the terminal is the shell's until `fg`, which may have set it otherwise."""
        if not self._is_to_stop:
            return
        self._live.stop()
        if self.keys:
            self._leave_keys()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._is_to_stop = False
        if self.keys:
            self._hear_keys()
        self._live.start()

    def _print_last(self) -> None:
        if self._view is not None:
            width, height = self._size()
            self._console.print(snapshot(self._view, width, height - PROMPT))

    def _size(self) -> tuple[int, int]:
        """What the terminal says of itself: COLUMNS and LINES, where exported, are of before it was resized."""
        from rich.console import ConsoleDimensions

        now = os.get_terminal_size(sys.stdout.fileno())
        if now.columns and now.lines:
            self._console.size = ConsoleDimensions(*now)
        return self._console.size


def _console() -> Console:
    """As wide as the terminal; elsewhere as `COLUMNS` says, else as other text of ours."""
    from rich.console import Console

    said = os.environ.get("COLUMNS", "")
    width = int(said) if said.isdecimal() and int(said) else None if _on_terminal() else PLAIN_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def screen(view: View, width: int, height: int) -> Text:
    """Exactly so many lines, none wider."""
    lines = _lines(view, width, height - 1)
    rest: list[Line] = [()] * (height - 1 - len(lines))
    return text([*lines, *rest, _footer(view)], width)


def snapshot(view: View, width: int, height: int = PAGE_LINES) -> Text:
    """So many lines at most, without what only a screen needs."""
    return text(_lines(view, width, height), width)


def text(lines: Sequence[Line], width: int) -> Text:
    """What rich draws: no line is wrapped, and one that is too wide ends in an ellipsis."""
    from rich.text import Text

    drawn = []
    for line in lines:
        one = Text.assemble(*((printable(words), STYLES.get(style, "")) for words, style in line))
        one.truncate(width, overflow="ellipsis")
        drawn.append(one)
    joined = Text("\n", no_wrap=True, overflow="crop").join(drawn)
    joined.no_wrap, joined.overflow = True, "crop"
    return joined


def _lines(view: View, width: int, height: int) -> list[Line]:
    gap: list[Line] = [()] if height >= ROOMY else []
    top = _top(view, width, gap, briefly=height < BRIEF)[:height]
    return [*top, *_body(view, width, height - len(top), gap)]


def _top(view: View, width: int, gap: list[Line], *, briefly: bool) -> list[Line]:
    breakdown = [] if view.last is None else breakdown_lines(view.last.summary, width, briefly=briefly)
    return [*head_lines(view, width), *status_lines(view, width), *(gap if breakdown else []), *breakdown]


def _sections(view: View, width: int) -> tuple[Section, ...]:
    """Findings, ranks, buckets, other units: in the order in which they get room."""
    last = view.last
    found = [] if last is None else list(last.result.findings)
    return (
        lambda room: finding_lines(found, view.notes, width, room),
        lambda room: rank_lines(view, width, room),
        lambda room: [] if last is None else bucket_lines(last, width, room),
        lambda room: [] if last is None else unit_lines(last, width, room),
    )


def _body(view: View, width: int, room: int, gap: list[Line]) -> list[Line]:
    """Each section has its least, then all get more in turn until they have what they want or nothing is left."""
    sections = _sections(view, width)
    wanted = [len(section(UNBOUNDED)) for section in sections]
    given = [0] * len(sections)
    for at, least in enumerate(LEAST_LINES):
        cost = min(least, wanted[at]) + len(gap)
        if wanted[at] and cost <= room:
            given[at], room = cost - len(gap), room - cost
    while room > 0 and any(0 < have < want for have, want in zip(given, wanted, strict=True)):
        for at in range(len(given)):
            if room > 0 and 0 < given[at] < wanted[at]:
                given[at], room = given[at] + 1, room - 1
    findings, ranks, buckets, others = (section(most) for section, most in zip(sections, given, strict=True))
    return [line for one in (buckets, others, ranks, findings) if one for line in (*gap, *one)]


def _footer(view: View) -> Line:
    steps = 0 if view.last is None else max(row.steps for row in view.last.result.ranks)
    told = [] if view.every_s is None else [f"looks every {view.every_s:.2g} s"]
    told += [f"of the last {counted(steps, 'step')}"] if steps else []
    told += ["q or Ctrl-C ends"] if view.keys else ["Ctrl-C ends"]
    return ((" · ".join(told), "faint"),)
