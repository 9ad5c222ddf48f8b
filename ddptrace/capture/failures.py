"""The words of an error in the records and notes: one line, without the place in C++."""

from __future__ import annotations

import re
from typing import Any, Final

from ddptrace.errors import printable

LENGTH_MAX: Final = 160
RAISED_AT: Final = re.compile(r"^\[[^\]\s]*:\d+\]\s*")
"""A message from C++ begins with the place that raised it."""


def failure_of(future: Any) -> str:
    """Return the error that a completed future holds, in one line; "" if it succeeded."""
    try:
        future.value()
    except Exception as error:
        return failure_words(error)
    return ""


def error_words(error: BaseException) -> str:
    """Return the type of the error and the first sentence of its message; the type alone if it has no message."""
    kind, words = type(error).__name__, printable(failure_words(error))
    return kind if words == kind else f"{kind}: {words}"


def failure_words(error: BaseException) -> str:
    """Return the first sentence of the error's message; its type if it has no message."""
    try:
        line = next(iter(str(error).splitlines()), "")
    except Exception:  # the message is made by code of the program
        line = ""
    return RAISED_AT.sub("", line).partition(". ")[0][:LENGTH_MAX].strip() or type(error).__name__
