"""How it is told what an operation failed with."""

from __future__ import annotations

import re
from typing import Any, Final

from ddptrace.errors import printable

LENGTH_MAX: Final = 160
RAISED_AT: Final = re.compile(r"^\[[^\]\s]*:\d+\]\s*")
"""Where in C++ it was raised, with which its message begins."""


def failure_of(future: Any) -> str:
    """The error that a completed future holds, in one line; empty where it succeeded."""
    try:
        future.value()
    except Exception as error:
        return failure_words(error)
    return ""


def error_words(error: BaseException) -> str:
    """Its type and the first sentence of its message; the type alone where there is no message to be had."""
    kind, words = type(error).__name__, printable(failure_words(error))
    return kind if words == kind else f"{kind}: {words}"


def failure_words(error: BaseException) -> str:
    """The first sentence of its message; its type where there is none to be had."""
    try:
        line = next(iter(str(error).splitlines()), "")
    except Exception:  # the message is made by code of the program
        line = ""
    return RAISED_AT.sub("", line).partition(". ")[0][:LENGTH_MAX].strip() or type(error).__name__
