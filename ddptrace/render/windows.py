"""A run without steps in words: its mean profiler window."""

from __future__ import annotations

from ddptrace.analysis.summary import WindowSummary
from ddptrace.render.words import EVIDENCE
from ddptrace.units import counted, duration, percent


def title_words(window: WindowSummary) -> str:
    """As in "Profiled window 474 ms  (mean of 2 windows of 2 ranks, from the device's first work to its last; …)"."""
    count = counted(window.windows, "window")
    mean = f"mean of {count} of {counted(window.ranks, 'rank')}" if window.windows > 1 else count
    of = "from the device's first work to its last" if window.on_device else "whole"
    return f"Profiled window {duration(window.window_ns)}  ({mean}, {of}; no step was found)"


def overlap_words(window: WindowSummary) -> str:
    """How much of the communication is hidden."""
    if not window.comm_ns or window.evidence is None:
        return "No communication was measured in it, so there is no overlap to tell."
    return (
        f"{percent(window.overlap_ratio)} of {duration(window.comm_ns)} communication is hidden behind compute"
        f" (evidence {window.evidence}: {EVIDENCE[window.evidence]})."
    )
