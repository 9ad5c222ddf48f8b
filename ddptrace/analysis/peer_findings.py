"""What collectives that were matched across ranks say of them: how much was transfer, how much waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.match_proof import ENDING_TOGETHER
from ddptrace.analysis.tables import Result
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding
from ddptrace.schema import Evidence

WAITING_MIN_RATIO: Final = 0.5
"""From such a share of the communication on, ranks that come late matter more than what is sent."""


def peer_findings(result: Result) -> Iterator[Finding]:
    """The clock-free estimate: the rank that came last waited for nobody, so its execution is the transfer. Only where
    the executions were measured: a begin that was inferred tells nothing of waiting."""
    executions: dict[tuple[int, int], int] = defaultdict(int)
    for row in result.collectives:
        if row.evidence in (Evidence.DEVICE, Evidence.BACKEND):
            executions[row.rank, row.seq] += row.comm_ns or 0
    together = [match for match in result.matches if match.op.startswith(ENDING_TOGETHER)]
    known = [match for match in together if all(one in executions for one in zip(match.ranks, match.seqs, strict=True))]
    sightings = [(one, len(match.ranks)) for match in known for one in zip(match.ranks, match.seqs, strict=True)]
    ran_ns = sum(executions[one] / ranks for one, ranks in sightings)
    transfer_ns = sum(match.transfer_ns for match in known)
    if ran_ns and 1 - transfer_ns / ran_ns >= WAITING_MIN_RATIO:
        yield Finding("waiting-for-ranks", "warning", "run", (
            f"{percent(1 - transfer_ns / ran_ns)} of the communication is waiting for ranks that come late:"
            f" {len(known)} collectives, matched across ranks, run for {ms(round(ran_ns))} on a rank (mean), of which"
            f" {ms(transfer_ns)} are transfer (the shortest execution over the ranks). Evener ranks would help, and a"
            " faster network would not; busbw of single ranks tells of the waiting too."
        ))  # fmt: skip
