"""How long a rank computes between the launch of a tensor-parallel collective and the need of its result.

needed at once     launch ├──── exposed ────┤ next layer      by nature: nothing can run meanwhile
with slack         launch ├ compute ┤─ exposed ─┤             by order: what computes meanwhile is too short
"""

from __future__ import annotations

from collections.abc import Iterator

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Measure, pairs
from ddptrace.analysis.rank_view import RankView
from ddptrace.load.tables import UnitKind


def slack_by_position(view: RankView) -> dict[int, tuple[int, int]]:
    """Return, by position of a communication of a tensor-parallel module, when its result was needed and its slack."""
    found = dict(_needs(view))
    spans = pairs((begin, max(begin, needed)) for begin, needed in found.values())
    slack = Measure(view.compute).within(spans[:, 0], spans[:, 1]).tolist()
    return {at: (needed, ns) for (at, (_, needed)), ns in zip(found.items(), slack, strict=True)}


def _needs(view: RankView) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield when the communication could begin at the earliest, and when its result was needed."""
    for at, (comm, member) in enumerate(zip(view.comms, view.members, strict=True)):
        if member.kind is UnitKind.TENSOR and comm.call is not None:
            span = _on_device(comm) if comm.call.on_device else _on_host(comm)
            if span is not None:
                yield at, span


def _on_host(comm: Communication) -> tuple[int, int] | None:
    call = comm.call
    return None if call is None or not call.waits else (call.issued_at_ns, min(begin for begin, _ in call.waits))


def _on_device(comm: Communication) -> tuple[int, int] | None:
    """By events: on the compute stream."""
    call = comm.call
    if call is None or call.events is None or not call.stream_waits:
        return None
    return call.events.ready_at_ns, min(wait.begin_at_ns for wait in call.stream_waits)
