"""A run without steps in words: its mean profiler window, and what could be won."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.device.rows import LAUNCH_BOUND_RATIO
from ddptrace.analysis.window_summary import WindowSummary
from ddptrace.render.words import EVIDENCE
from ddptrace.units import counted, duration, percent

EXPOSED_MIN_RATIO: Final = 0.02


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


def headline_words(window: WindowSummary) -> tuple[str, str, bool]:
    """The largest thing that could be won: a number, what it is, and whether that is good news."""
    exposed, idle = window.part("exposed_comm"), window.part("idle")
    whole = f"of the profiled window ({duration(idle.ns)} of {duration(window.window_ns)})"
    if idle.ratio > max(exposed.ratio, LAUNCH_BOUND_RATIO):
        if not window.on_device:
            return percent(idle.ratio), f"{whole} the rank neither computes nor communicates.", False
        if 2 * window.queued_ns > idle.ns:
            return percent(idle.ratio), f"{whole} the trace shows nothing running, although work is queued.", False
        return percent(idle.ratio), f"{whole} the device waits for the host to launch work.", False
    if not window.comm_ns:
        busy = "the device was busy" if window.on_device else "the rank computed"
        return percent(1 - idle.ratio), f"of the profiled window {busy}. No communication and no step was found.", True
    calm = exposed.ratio < EXPOSED_MIN_RATIO
    told = (
        "of the profiled window could be won by hiding communication, at most:"
        f" {duration(exposed.ns)} of {duration(window.window_ns)}."
    )
    return percent(exposed.ratio), told + (" Look elsewhere for time." if calm else ""), calm
