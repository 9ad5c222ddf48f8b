"""From a run directory to plain tables. Needs neither torch nor what recorded the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptrace.load.run import read_run

__all__ = ["read_run"]


def __getattr__(name: str) -> object:
    """Only reading brings in the parser; analysis needs no more than `ddptrace.load.tables`."""
    if name != "read_run":
        raise AttributeError(f"module 'ddptrace.load' has no attribute {name!r}")
    from ddptrace.load.run import read_run

    return read_run
