"""Keeps the program's signal handlers waiting while a trace is entered or left: one that raises, as that of Ctrl-C
does, would leave half of it in place.

    with trace(...):      handlers wait; all is put in place; handlers run, and what they raise ends the trace
        train()
                          handlers wait; all is taken out; handlers run, and what they raise reaches the program

What the program has asked the system for beside a handler stays: `signal.siginterrupt`, or a function in C that stands
before Python's, as that of `faulthandler.register(..., chain=True)` does. `signal.signal` undoes both, so the system is
told again what it was told before.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading

# The functions below `signal`'s, which make an enumeration of each number: all signals together cost 0.1 ms there.
from _signal import getsignal, signal, valid_signals  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

SIGNALS: Final = tuple(valid_signals())
Action: Final = ctypes.c_char * 1024
"""More bytes than the system needs to describe what it does at a signal. `ctypes.create_string_buffer` would make them,
too, but raises an audit event, which a hook of the program may refuse."""

MOST_TRIES: Final = 100


class WaitingHandlers:
    """Python calls handlers in the main thread only; in another thread this does nothing."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._actions: dict[int, Any] = {}  # what the system does at these signals
        self._came: dict[int, None] = {}  # in order, each once, as the system keeps signals that are blocked
        self._raised: list[BaseException] = []
        self._standing = self._note

    def hold(self) -> None:
        """Keep all handlers waiting from now on."""
        if threading.get_ident() == threading.main_thread().ident:
            self._in_spite_of_handlers(self._replace)

    def release(self) -> None:
        """Put the handlers back, and run those whose signals have come. Raises what they raise. A second call finishes
        what an exception from another thread has cut off."""
        self._in_spite_of_handlers(self._put_back)
        caller = sys._getframe().f_back
        try:
            self._run(caller and caller.f_back)
        finally:
            self._raise_first()

    def _raise_first(self) -> None:
        if self._raised:
            first, self._raised = self._raised[0], []
            try:
                raise first
            finally:
                del first  # its traceback holds this frame, and all that is open in the frames that it came through

    def _in_spite_of_handlers(self, action: Callable[[], None]) -> None:
        """Run `action`, again if a handler that does not wait has raised out of it."""
        for _ in range(MOST_TRIES):
            try:
                action()
            except BaseException as error:
                self._raised.append(error)
            else:
                break

    def _replace(self) -> None:
        for number in SIGNALS:
            handler = getsignal(number)
            if callable(handler) and handler is not self._standing:
                self._actions[number] = _action_of(number)
                self._handlers[number] = handler
                signal(number, self._standing)
        for changed, action in self._actions.items():
            _act(changed, action)

    def _put_back(self) -> None:
        for number, handler in self._handlers.items():
            if getsignal(number) is self._standing:  # the program may have set another one meanwhile
                signal(number, handler)
        for changed, action in self._actions.items():
            if getsignal(changed) is self._handlers[changed]:
                _act(changed, action)
        self._actions = {}  # what the program asks for from now on stays

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = None

    def _run(self, frame: FrameType | None) -> None:
        """Run the handlers one after the other, also if one raises."""
        if self._came:
            number = next(iter(self._came))
            try:
                del self._came[number]
                self._handlers[number](number, frame)
            finally:
                self._run(frame)


class HeldHandlers(threading.local):
    """What waits while the calling thread does what no handler may cut off, innermost last."""

    def __init__(self) -> None:
        self._held: list[WaitingHandlers] = []

    def hold(self, handlers: WaitingHandlers) -> None:
        self._held.append(handlers)
        handlers.hold()

    def release(self, handlers: WaitingHandlers) -> None:
        try:
            handlers.release()
        finally:
            if handlers in self._held:
                self._held.remove(handlers)

    @contextlib.contextmanager
    def let(self) -> Iterator[None]:
        """Let them run meanwhile, if they wait."""
        innermost = self._held[-1:]
        for handlers in innermost:
            handlers.release()
        try:
            yield
        finally:
            for handlers in innermost:
                handlers.hold()


_sigaction: Final = ctypes.CDLL(None).sigaction


def _action_of(number: int) -> Any:
    """What the system does at a signal; None where it does not tell."""
    action = Action()
    return None if _sigaction(number, None, action) else action


def _act(number: int, action: Any) -> None:
    """Have the system do this at a signal."""
    if action is not None:
        _sigaction(number, action, None)
