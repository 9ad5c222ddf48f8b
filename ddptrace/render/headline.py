"""The headline: the largest time that a change could win back, in one sentence.

Of a run without steps, it is about the mean profiler window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.analysis import savings
from ddptrace.analysis.collectives.transfers import is_in_its_bytes
from ddptrace.analysis.device.digest import device_total, less_to_launch
from ddptrace.analysis.device.idle import AT_WORK, LONG_GAP_NS
from ddptrace.analysis.ranks.digest import waits_little
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import own_calls
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import WORTH_RATIO, Summary, WindowSummary, summarize
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.analysis.tables.steps import SavingRow
from ddptrace.findings import DEVICE_CAUGHT_UP, KINDS, LATE_RANK, RUN_TOO_SHORT
from ddptrace.render.words import EVIDENCE, UNSEEN
from ddptrace.units import counted, duration, percent

NO_COMM: Final = "No communication was measured in it."
CALM_CALLS: Final = "Next to nothing of it waits for its remote calls."
IDLE_WORDS: Final[Mapping[str, str]] = {
    "data": "while the host fetches a batch",
    "copy": "while the host is blocked in copies, or catches up",
    "synchronize": "while the host waits for it, or catches up",
    "allocate": "while the host allocates or frees memory",
    "collect": "while Python collects garbage",
    "still": "while no thread of the program runs",
    AT_WORK: "while the host is at work",
}
"""By cause: when the device is idle."""
BUSY_MIN_RATIO: Final = 0.9
"""Of the typical step. A device that computes for longer has no time that something else than less work wins back."""


@dataclass(frozen=True, slots=True)
class Headline:
    """As in "12 %" "of the typical step ..."."""

    number: str
    words: str  # the sentence that the number begins
    first_step: str  # what to do first, without a full stop; "" where there is nothing to do
    calm: bool  # good news, or none

    @property
    def text(self) -> str:
        """The whole in plain text."""
        return f"{self.number} {self.words}" + (f" First step: {self.first_step}." if self.first_step else "")


def headline(result: Result, summary: Summary) -> Headline:
    """Choose what a reader sees first: the largest saving, or why there is none."""
    typical = summary.typical
    if typical is not None and not summary.is_seen:
        return Headline(duration(typical.wall_ns), f"is the typical step, on the host. {UNSEEN}", "", calm=False)
    largest = next(iter(result.savings), None)
    if largest is not None and largest.cost_ratio >= WORTH_RATIO:
        computes_less = _computes_less(result, summary)
        words = _words(largest, result.suspects, _whole(summary), computes_less)
        return Headline(percent(largest.cost_ratio), words, _first_step(largest, result, computes_less), calm=False)
    return _starved(result, summary) or _busy(result, summary) or _calm(result, summary)


def saving_words(row: SavingRow, result: Result, summary: Summary) -> str:
    """One saving as the headline would say it: `12 % of the typical step ...`."""
    words = _words(row, result.suspects, _whole(summary), _computes_less(result, summary))
    return f"{percent(row.cost_ratio)} {words}"


def _starved(result: Result, summary: Summary) -> Headline | None:
    """Of a device that may have waited for the host most of the time; None where it did not, or a profiler tells."""
    unsure_ns, whole_ns = summary.unsure_ns or 0, summary.window_ns or 0
    is_told = any(finding.code == DEVICE_CAUGHT_UP.code for finding in result.findings)
    if not is_told or not whole_ns or summary.is_sure:
        return None
    told = f"{duration(unsure_ns)} of {duration(whole_ns)}"
    words = f"of the typical step the device computes or waits for the host, and events do not tell which: {told}."
    return Headline(percent(unsure_ns / whole_ns), words, DEVICE_CAUGHT_UP.to_do, calm=False)


def _busy(result: Result, summary: Summary) -> Headline | None:
    """Of a device that computes nearly all the time; None where it does not, or where that is not known."""
    compute, whole_ns = summary.part("compute"), summary.window_ns
    is_on_device = summary.unsure_ns is not None or bool(result.launches)
    if compute is None or compute.ratio < BUSY_MIN_RATIO or not is_on_device or not summary.is_sure:
        return None
    told = f"{duration(compute.ns)} of {duration(whole_ns)}"
    words = f"of {_whole(summary)} the device computes: {told}. Only less or faster computation shortens it."
    return Headline(percent(compute.ratio), words, "", calm=True)


def _whole(summary: Summary) -> str:
    """Name what the parts are a share of."""
    if not summary.parts:
        return "the profiled window"
    return "a profiled step" if summary.is_apart else "the typical step"


def _words(one: SavingRow, suspects: Sequence[SuspectRow], whole: str, computes_less: bool) -> str:
    cost = duration(one.cost_ns)
    of_whole = f"{cost} of {duration(one.whole_ns)}"
    match one.cause:
        case savings.EXPOSED if computes_less:
            return f"of {whole} is exposed communication, more than computation could hide: {_sent_words(one)}."
        case savings.EXPOSED:
            return f"of {whole} could be won by hiding communication, at most: {_sent_words(one)}."
        case savings.LATE:
            named = (suspect.cause for suspect in suspects if f"rank {suspect.rank}" == one.where)
            why = next(named, "as far as the few steps recorded tell")
            return f"of the typical step could be won if {one.where} were as fast as the others ({why}): {of_whole}."
        case savings.WAITING:
            mostly = f", mostly for {one.where}" if one.where else ""
            return f"of {whole} the ranks wait for ranks that come late{mostly}: {cost}."
        case savings.PROCESSORS:
            return f"of a step all ranks wait for a processor: {cost} (median of the ranks)."
        case savings.REMOTE:
            return f"of {whole} waits for remote calls, and nothing else runs: {cost}."
        case savings.BUFFERS:
            return f"of {whole} DDP sends the model's buffers before forward, and the device waits: {cost}."
        case savings.STAGE:
            return f"of {whole} could be won if {one.where} of the pipeline were as fast as a typical one: {of_whole}."
        case savings.BUBBLE:
            return f"of {whole} ranks are idle because the pipeline's schedule has no work for them: {of_whole}."
        case savings.COPIES:
            return f"of {whole} the device does nothing but copy: {cost}."
        case "data" if one.half_gap_ns is None:
            return f"of {whole} the program fetches a batch: {cost}."
        case "work" if one.half_gap_ns is None:
            return f"of {whole} the device waits for the host to launch work: {cost}."
        case "queued":
            return (
                f"of {whole} the trace shows nothing running, although work is queued, and does not tell why: {cost}."
            )
        case cause:
            return f"of {whole} the device is idle {IDLE_WORDS[cause]}: {cost}."


def _computes_less(result: Result, summary: Summary) -> bool:
    """Whether the typical step computes for less time than it communicates: then not all of that can be hidden."""
    whole = summary if summary.parts else summarize_windows(result)
    compute = None if whole is None else whole.part("compute")
    return compute is not None and whole is not None and whole.comm_ns is not None and compute.ns < whole.comm_ns


def _sent_words(one: SavingRow) -> str:
    most = f"; {one.where} costs most" if one.where else ""
    return f"{duration(one.cost_ns)} of {duration(one.whole_ns)}{most}"


def _first_step(one: SavingRow, result: Result, computes_less: bool) -> str:
    if one.cause == AT_WORK and (one.half_gap_ns or 0) > LONG_GAP_NS:
        held = f"in {one.where}" if one.where else "there; record with with_stack=True to see it"
        return f"look for what holds the host {held}"
    if one.cause == AT_WORK and one.half_gap_ns is not None:
        return f"give the host less to launch: {less_to_launch(result)}"
    if one.cause == savings.EXPOSED and computes_less:
        return _less_to_send(result)
    kind = LATE_RANK if one.finding == RUN_TOO_SHORT.code else KINDS[one.finding]
    return kind.to_do.replace("`", "")


def _less_to_send(result: Result) -> str:
    """What shortens communication that is longer than computation."""
    worst = summarize(result).worst
    is_small = worst is not None and not is_in_its_bytes(worst, result)
    less = "send fewer, larger messages" if is_small else "send less, or over a faster link"
    return less if waits_little(result) else f"look at what it waits for, and for a slow rank; then {less}"


def _calm(result: Result, summary: Summary) -> Headline:
    """Nothing is worth a change, or nothing was found."""
    device, calls = device_total(result), len(own_calls(result.rpcs))
    exposed = summary.part("exposed_comm")
    if exposed is not None and summary.comm_ns:
        told = f"{duration(exposed.ns)} of {duration(summary.window_ns)}"
        words = f"of {_whole(summary)} could be won by hiding communication, at most: {told}. Look elsewhere for time."
        return Headline(percent(exposed.ratio), words, "", calm=True)
    if exposed is not None and summary.typical is not None:
        words = f"is the typical step. {CALM_CALLS if summary.rpc_calls else NO_COMM}"
        return Headline(duration(summary.typical.window_ns), words, "", calm=True)
    if device is not None and device.span_ns:
        busy, found = percent(1 - device.idle_ns / device.span_ns), "" if device.comm_ns else "No communication and "
        words = f"of the device's time it was busy. {found}{'no' if found else 'No'} step was found."
        return Headline(busy, words, "", calm=True)
    window = summarize_windows(result)
    if window is not None and not calls:
        return _window_headline(window)
    if calls:
        words = "remote calls were made. No step was found that could be broken down."
        return Headline(f"{calls:,}", words, "", calm=True)
    return Headline("0 steps", "were found, so there is nothing to break down.", "", calm=True)


def _window_headline(window: WindowSummary) -> Headline:
    """Of a host's profiler window in which no step was found."""
    exposed, told = window.part("exposed_comm"), f"of {duration(window.window_ns)}"
    if exposed.ratio >= WORTH_RATIO:
        words = f"of the profiled window could be won by hiding communication, at most: {duration(exposed.ns)} {told}."
        return Headline(percent(exposed.ratio), words, "", calm=False)
    compute = window.part("compute")
    words = f"of the profiled window it computed: {duration(compute.ns)} {told}. No step was found."
    return Headline(percent(compute.ratio), words, "", calm=True)


def window_title(window: WindowSummary) -> str:
    """As in "Profiled window 474 ms  (mean of 2 windows of 2 ranks, from the device's first work to its last; …)"."""
    count = counted(window.windows, "window")
    mean = f"mean of {count} of {counted(window.ranks, 'rank')}" if window.windows > 1 else count
    of = "from the device's first work to its last" if window.on_device else "whole"
    return f"Profiled window {duration(window.window_ns)}  ({mean}, {of}; no step was found)"


def window_overlap(window: WindowSummary) -> str:
    """How much of the communication is hidden."""
    if not window.comm_ns or window.evidence is None:
        return "No communication was measured in it, so there is no overlap to tell."
    return (
        f"{percent(window.overlap_ratio)} of {duration(window.comm_ns)} communication is hidden behind compute"
        f" (evidence {window.evidence}: {EVIDENCE[window.evidence]})."
    )
