"""Collectives of few bytes that take long: whether they wait or move them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.findings.next_look import FEW_NBYTES
from ddptrace.analysis.ranks.digest import MeetingDigest, Meetings, meetings
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.wording import amount, brief, ms, percent
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

LONG_NS: Final = 1_000_000
COSTLY_MIN_RATIO: Final = 0.05
"""Of the step."""

WAITING_MIN_RATIO: Final = 0.5


def slow_message_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """The kind of small collectives that waits most, where that is much."""
    found = meetings(result)
    measured = {row.match for row in result.collectives if row.evidence in (Evidence.DEVICE, Evidence.BACKEND)}
    told = {row.op for row in result.matches if row.match in measured}
    for kind in found.kinds:
        if kind.op in told and _is_slow(kind, found, summary):
            yield _slow(kind, result)
            return


def _is_slow(kind: MeetingDigest, found: Meetings, summary: Summary) -> bool:
    wait, transfer = _split(kind)
    if kind.nbytes is None or not 0 < kind.nbytes <= FEW_NBYTES or wait + transfer < LONG_NS or not summary.window_ns:
        return False
    a_step = wait * kind.count / max(found.steps, 1)
    return wait >= WAITING_MIN_RATIO * (wait + transfer) and a_step >= COSTLY_MIN_RATIO * summary.window_ns


def _split(kind: MeetingDigest) -> tuple[int, int]:
    """Wait and transfer, by aligned clocks where these tell."""
    if kind.wait_ns is None or kind.transfer_ns is None:
        return kind.free_wait_ns or 0, kind.free_transfer_ns
    return kind.wait_ns, kind.transfer_ns


def _slow(kind: MeetingDigest, result: Result) -> Finding:
    wait, transfer = _split(kind)
    lag, clocks = kind.latest, "by aligned clocks" if kind.wait_ns is not None else "by lengths alone"
    last = f"; rank {lag.rank} is the last in {percent(lag.last_ratio)} of them" if lag is not None else ""
    return Finding("slow-message", "warning", "run", (
        f"{kind.op.rstrip('_')} of {amount(kind.nbytes or 0)}{_from(kind, result)} takes {ms(wait + transfer)} a time,"
        f" though its bytes are few: {ms(wait)} are waiting until the last rank has come, {brief(transfer)} transfer"
        f" (means of all ranks, {clocks}, {kind.count} of them){last}. A faster link does not help: look at what the"
        " last rank does before it, or call it less often."
    ))  # fmt: skip


def _from(kind: MeetingDigest, result: Result) -> str:
    sites = (row.site for row in result.collectives if _is_of(row, kind) and row.site is not None)
    site = next(sites, None)
    return f" (at {site})" if site else ""


def _is_of(row: CollectiveRow, kind: MeetingDigest) -> bool:
    return (row.op, row.group, row.nbytes) == (kind.op, kind.group, kind.nbytes)
