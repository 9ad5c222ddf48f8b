"""The terminal that a run is watched in: drawn anew whenever somebody says so, and left as it was found."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from ddptrace.render.watch.page import screen, snapshot
from ddptrace.render.watch.view import View

if TYPE_CHECKING:
    from rich.console import Console

ENDS: Final = (b"q", b"Q", b"\x03", b"\x04")
PROMPT: Final = 2
"""Lines below the last view, which else would push its head out of sight."""
PLAIN_WIDTH: Final = 96
"""Where nobody says how wide the paper is."""


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
