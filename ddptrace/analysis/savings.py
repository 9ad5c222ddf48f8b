"""Works out what could be won back, by cause: late ranks, broadcasts of buffers, idle devices and others.

The first row is the headline of the report; `ddptrace/render/headline.py` has its words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Final

from ddptrace.analysis.collectives.rows import BufferTime
from ddptrace.analysis.device.copies import as_copies
from ddptrace.analysis.device.idle import AT_WORK, held_by
from ddptrace.analysis.pipeline.digest import (
    PipelineDigest,
    idle_in_pipelines_ns,
    largest_bubble,
    pipeline_digests,
    slowest_stage,
)
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.ranks.causes import SLOW_LINK as LINK
from ddptrace.analysis.ranks.digest import WAITING_MIN_RATIO, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.windows import summarize_windows
from ddptrace.analysis.summary import Share, Summary, measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.analysis.tables.steps import SavingRow
from ddptrace.analysis.units.digest import unrecorded_ns
from ddptrace.findings import (
    ALLOCATION_BOUND,
    BLOCKING_COPIES,
    BUFFER_BROADCASTS,
    DATA_BOUND,
    EXPOSED_BUCKET,
    EXPOSED_COMMUNICATION,
    EXPOSED_COPIES,
    GARBAGE_COLLECTION,
    GRADIENTS_ONE_BY_ONE,
    HOST_STANDS_STILL,
    HOST_SYNCHRONIZES,
    IDLE_WHILE_QUEUED,
    LATE_RANK,
    LAUNCH_BOUND,
    PIPELINE_BUBBLE,
    PROCESSORS_CROWDED,
    RUN_TOO_SHORT,
    SLOW_LINK,
    SLOW_STAGE,
    WAITING_FOR_RANKS,
    WAITING_FOR_REMOTE_CALLS,
    FindingKind,
)
from ddptrace.load.tables import Identity
from ddptrace.schema import Origin

EXPOSED: Final = "exposed communication"
LATE: Final = "late rank"
WAITING: Final = "waiting for ranks"
REMOTE: Final = "remote calls"
PROCESSORS: Final = "processors"
COPIES: Final = "exposed copies"
BUFFERS: Final = "buffer broadcasts"
STAGE: Final = "slow stage"
BUBBLE: Final = "pipeline bubble"
IDLE_KINDS: Final[Mapping[str, FindingKind]] = {
    "data": DATA_BOUND,
    "copy": BLOCKING_COPIES,
    "synchronize": HOST_SYNCHRONIZES,
    "allocate": ALLOCATION_BOUND,
    "collect": GARBAGE_COLLECTION,
    "queued": IDLE_WHILE_QUEUED,
    "still": HOST_STANDS_STILL,
    AT_WORK: LAUNCH_BOUND,
}
"""By cause of idle time, as `held_by` tells them apart."""


def savings(result: Result, summary: Summary, blame: Blame, ranks: Sequence[RankFacts] = ()) -> list[SavingRow]:
    """List what could be won back, the largest first, of a result whose `suspects` are known."""
    parts, whole_ns = _parts(result, summary)
    if not whole_ns:
        return []
    exposed_ns, copies_ns = (
        next((part.ns for part in parts if part.name == name), 0) for name in ("exposed_comm", "exposed_memory")
    )
    waited_ns = _waited_ns(result, exposed_ns - unrecorded_ns(result))
    late_ns = sum(suspect.cost_ns for suspect in result.suspects)  # the other ranks wait for them in collectives
    digests = pipeline_digests(result)
    idle_ns = idle_in_pipelines_ns(digests, len(result.ranks))
    sent_ns = max(exposed_ns - max(waited_ns, min(late_ns, exposed_ns)) - idle_ns, 0)
    worst = _worst_bucket(summary, exposed_ns)
    sent = _row(EXPOSED, sent_ns, whole_ns, worst, EXPOSED_BUCKET if worst else _beside_buckets(result, summary))
    found = [
        *_late(result.suspects, whole_ns),
        *_waiting(result, blame, waited_ns, whole_ns),
        sent,
        _row(COPIES, copies_ns, whole_ns, "", EXPOSED_COPIES),
        _row(REMOTE, summary.rpc_wait_ns or 0, whole_ns, "", WAITING_FOR_REMOTE_CALLS),
        *_idle(result, summary, whole_ns),
        *_crowded(blame),
        *_buffers(ranks, result, whole_ns),
        *_pipelines(digests, whole_ns),
    ]
    return sorted((row for row in found if row.cost_ns > 0), key=lambda row: -row.cost_ratio)


def _row(
    cause: str, cost_ns: float, whole_ns: int, where: str, kind: FindingKind, half_gap_ns: int | None = None
) -> SavingRow:
    return SavingRow(cause, round(cost_ns), cost_ns / whole_ns, whole_ns, where, kind.code, half_gap_ns)


def _parts(result: Result, summary: Summary) -> tuple[Sequence[Share], int]:
    """Parts of the typical step, or without steps those of a device's profiler window, and their whole in ns."""
    if summary.parts:
        return summary.parts, summary.window_ns or 0
    windows = summarize_windows(result)
    return (windows.parts, windows.window_ns) if windows is not None and windows.on_device else ((), 0)


def _worst_bucket(summary: Summary, exposed_ns: int) -> str:
    """The bucket that costs most, as in "bucket 3"; "" where most of the communication is no bucket's."""
    in_buckets_ns = sum(bucket.exposed_charged_ns or 0 for bucket in summary.buckets)
    return f"bucket {summary.worst.index}" if summary.worst is not None and 2 * in_buckets_ns >= exposed_ns else ""


def _beside_buckets(result: Result, summary: Summary) -> FindingKind:
    return GRADIENTS_ONE_BY_ONE if gradients_one_by_one(summary, result) is not None else EXPOSED_COMMUNICATION


def _crowded(blame: Blame) -> Iterator[SavingRow]:
    if blame.crowding is not None:
        queued_ns, step_ns = blame.crowding.queued_ns, round(blame.crowding.step_ns)
        yield _row(PROCESSORS, queued_ns, step_ns, "", PROCESSORS_CROWDED)


def _buffers(ranks: Sequence[RankFacts], result: Result, whole_ns: int) -> Iterator[SavingRow]:
    found = buffer_cost(ranks, result)
    if found is not None:
        yield _row(BUFFERS, found[1], whole_ns, "", BUFFER_BROADCASTS)


def _pipelines(digests: Sequence[PipelineDigest], whole_ns: int) -> Iterator[SavingRow]:
    """Of the pipelines where that costs most: others, which run beside them, are mostly replicas."""
    slow, bubble = slowest_stage(digests), largest_bubble(digests)
    if slow is not None and slow.slow is not None:
        cost_ns = slow.slow.costs_ns * slow.turns / slow.steps
        yield _row(STAGE, cost_ns, whole_ns, f"stage {slow.slow.stage}", SLOW_STAGE)
    if bubble is not None:
        yield _row(BUBBLE, bubble.bubble_ns * bubble.turns / bubble.steps, whole_ns, "", PIPELINE_BUBBLE)


def _late(suspects: Sequence[SuspectRow], whole_ns: int) -> Iterator[SavingRow]:
    for suspect in suspects:
        kind = SLOW_LINK if suspect.cause == LINK else LATE_RANK
        step_ns = round(suspect.cost_ns / suspect.cost_ratio) if suspect.cost_ratio else whole_ns
        yield _row(LATE, suspect.cost_ns, step_ns, f"rank {suspect.rank}", kind)


def _waited_ns(result: Result, exposed_ns: int) -> float:
    """The part of the exposed communication that waits for ranks, where that is most of it; else 0. `exposed_ns`: of
    recorded collectives."""
    matched = matched_time(result)
    return exposed_ns * matched.waiting_ratio if matched and matched.waiting_ratio >= WAITING_MIN_RATIO else 0.0


def _waiting(result: Result, blame: Blame, waited_ns: float, whole_ns: int) -> Iterator[SavingRow]:
    """What waits for ranks, less what named ranks cost. One rank's name stands by it where that rank alone seems to
    cost half of it, in too few steps to be sure. It is that rank's cost where that is more: the late rank itself does
    not wait, so a mean over few ranks is too low."""
    left_ns = max(waited_ns - sum(suspect.cost_ns for suspect in result.suspects), 0)
    seeming = blame.seeming or blame.early
    if seeming is None or 2 * seeming.cost_ns < left_ns:
        yield _row(WAITING, left_ns, whole_ns, "", WAITING_FOR_RANKS)
    elif not seeming.cost_ratio or seeming.cost_ns <= left_ns:
        yield _row(WAITING, left_ns, whole_ns, f"rank {seeming.rank}", WAITING_FOR_RANKS)
    elif waited_ns:
        kind = RUN_TOO_SHORT if blame.seeming is not None else LATE_RANK
        yield _row(LATE, seeming.cost_ns, round(seeming.cost_ns / seeming.cost_ratio), f"rank {seeming.rank}", kind)


def _idle(result: Result, summary: Summary, whole_ns: int) -> Iterator[SavingRow]:
    """Causes of idle time of a device; of processors, of which nobody tells why they idle, what the phases tell."""
    remote_ns = summary.rpc_wait_ns or 0
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    rows = as_copies(result.idle, result.copies)
    told = [row for row in rows if (row.rank, row.step) in steps or (not steps and row.step is None)]
    held = held_by(told)
    windows = summarize_windows(result)
    count = len(steps) or (1 if windows is None else windows.windows)
    for cause in held:
        calls_ns = remote_ns if cause.cause == AT_WORK else 0  # the host is blocked on them meanwhile
        cost_ns, kind = cause.idle_ns / count - calls_ns, IDLE_KINDS[cause.cause]
        yield _row(cause.cause, cost_ns, whole_ns, cause.place, kind, cause.half_gap_ns)
    if not held and summary.host_idle_ns is not None:
        yield _row(AT_WORK, summary.host_idle_ns - remote_ns, whole_ns, "", LAUNCH_BOUND)
    elif not held and not result.launches and summary.unsure_ns is None:
        data_ns = next((phase.ns for phase in summary.phases if phase.name == "data"), 0)
        yield _row("data", data_ns, whole_ns, "", DATA_BOUND)


# Broadcasts of buffers ------------------------------------------------------------------------------------------------


def buffer_cost(ranks: Sequence[RankFacts], result: Result) -> tuple[float, float] | None:
    """Return how long the broadcasts hold the host in a typical step, and what that costs, in ns; None where there are
    none. Of each step the rank counts that they cost least: the others may have waited for it."""
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    by_step: defaultdict[int, list[BufferTime]] = defaultdict(list)
    for rank in ranks:
        for time in rank.buffers:
            if (rank.rank, time.step) in steps:
                by_step[time.step].append(time)
    if not by_step:
        return None
    least = [min(times, key=attrgetter("cost_ns")) for times in by_step.values()]
    share = len(least) / len({step for _, step in steps})
    host, cost = (fmean(one) * share for one in zip(*((time.host_ns, time.cost_ns) for time in least), strict=True))
    return host, cost


# Gradients that are reduced one by one --------------------------------------------------------------------------------


CALLS_MIN: Final = 16
"""In a step; DDP sends most models in fewer buckets."""
EXPOSED_MIN_RATIO: Final = 0.02
"""Of the step, that must wait for them."""
MOST_MIN_RATIO: Final = 0.5
"""Of all exposed communication, that must be theirs: else another kind is worth more."""
SMALL_MAX_NBYTES: Final = 8 << 20
"""In the mean; larger calls are in their bytes, and gain nothing."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """All-reduces of single gradients: means over the typical steps, and over the calls."""

    calls: float  # in a step
    exposed_ns: float  # of a step
    mean_ns: float  # of a call
    mean_nbytes: float | None  # of a call, where any is known


def gradients_one_by_one(summary: Summary, result: Result) -> OneByOne | None:
    """Find the all-reduces of single gradients, if they are most of what the typical step waits for."""
    steps, _ = measured_steps(result.steps)
    wanted = {(row.rank, row.step) for row in steps}
    rows = [row for row in result.collectives if (row.rank, row.step) in wanted and _is_alone(row)]
    calls = len({(row.rank, row.seq) for row in rows})
    if not steps or calls < CALLS_MIN * len(steps):
        return None
    known = [row.nbytes for row in rows if row.nbytes is not None]
    found = OneByOne(
        calls / len(steps),
        sum(row.exposed_charged_ns or 0 for row in rows) / len(steps),
        sum(row.comm_ns or 0 for row in rows) / calls,
        sum(known) / len(known) if known else None,
    )
    return found if _is_worth_it(found, summary) else None


def _is_alone(row: CollectiveRow) -> bool:
    """Gradients that no reducer sends. What ddptrace recorded as gradients is always a reducer's."""
    is_own = row.origin == Origin.GRADIENTS.word and row.identity is not Identity.RECORDED
    return is_own and row.bucket is None and row.op == "all_reduce"


def _is_worth_it(found: OneByOne, summary: Summary) -> bool:
    exposed = summary.part("exposed_comm")
    all_ns = exposed.ns if exposed is not None else 0
    least_ns = max(EXPOSED_MIN_RATIO * (summary.window_ns or 0), MOST_MIN_RATIO * all_ns)
    return 0 < least_ns <= found.exposed_ns and (found.mean_nbytes or 0) <= SMALL_MAX_NBYTES
