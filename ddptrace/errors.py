"""The errors that ddptrace raises. Each message is one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ODD: Final = re.compile("[^ -~]+")
MOST_MARKS: Final = 4
"""Combining marks on one letter. More, which no language uses, would cover the lines above and below."""


class DdptraceError(Exception):
    """Base class of every error that ddptrace raises on purpose. Its message is one sentence that is safe to print on a
    terminal."""

    def __str__(self) -> str:
        return printable(super().__str__())


class RunDirectoryError(DdptraceError):
    """A run directory cannot be used: it is missing, holds another run, is unreadable, or has another major schema
    version."""


class TraceStateError(DdptraceError):
    """A trace cannot be entered: this process is inside another trace, or an argument is wrong."""


class CompileError(DdptraceError):
    """`ddptrace compile` cannot compile its library, on this machine or for this torch."""


@contextmanager
def needing_torch(what: str) -> Iterator[None]:
    """Turn a failed import of torch within the block into the one sentence that says so. `what` needs torch.

    Raises:
        DdptraceError: torch is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DdptraceError(f"{what} needs torch, which is not installed: pip install 'ddptrace[torch]'") from None


def printable(name: object) -> str:
    """Return a text from outside, such as a file's name, as one line that is safe to print on a terminal.

    Control characters, line breaks, invisible and bidirectional marks become escapes such as `\\x1b` and `\\u202e`.
    """
    return escaped(str(name), lambda sign: sign.encode("unicode_escape").decode())


def escaped(text: str, escape: Callable[[str], str]) -> str:
    """Return the text with `escape(sign)` in place of each sign that must not reach a terminal."""
    return ODD.sub(lambda run: "".join(_escaped(run[0], escape)), text)


def _escaped(signs: str, escape: Callable[[str], str]) -> list[str]:
    shown, marks = [], 0
    for sign in signs:
        marks = marks + 1 if unicodedata.category(sign) in ("Mn", "Me") else 0
        shown.append(sign if sign.isprintable() and marks <= MOST_MARKS else escape(sign))
    return shown
