"""The errors a caller of ddptrace can meet. Each message says what is wrong, where, and what to do, in one sentence."""

from __future__ import annotations


class DdptraceError(Exception):
    """Base class of every error that ddptrace raises on purpose. Its message is one sentence."""


class RunDirectoryError(DdptraceError):
    """A run directory cannot be used: absent, taken by another run, unreadable, or of another major schema version."""


class TraceStateError(DdptraceError):
    """A trace cannot be entered: this process is inside another one, or the arguments do not fit."""


class CompileError(DdptraceError):
    """`ddptrace compile` cannot compile its library, on this machine or for this torch."""


def printable(name: object) -> str:
    """A name from outside (of a file, a kernel) without what a terminal would obey or no encoding can hold."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))
