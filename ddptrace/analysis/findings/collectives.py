"""Collectives that cost time: exposed ones without a bucket, small ones that wait, and queued ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddptrace.analysis.collectives.digest import CollectiveDigest, collectives
from ddptrace.analysis.collectives.transfers import FEW_NBYTES
from ddptrace.analysis.rank_tables import RankFacts
from ddptrace.analysis.ranks.digest import MatchDigest, MatchDigests, match_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Share, Summary, measured_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.units.digest import unrecorded_ns
from ddptrace.findings import EXPOSED_COMMUNICATION, QUEUED, SLOW_MESSAGE, Finding
from ddptrace.load.tables import Identity, UnitKind
from ddptrace.schema import Origin, line_words
from ddptrace.units import duration, percent, size

BUCKETS: Final = (Origin.GRADIENTS.word, Origin.HOOK.word)
OF_TENSORS: Final = (
    "the layer after it needs its result at once, so it is exposed by nature: shard over fewer ranks or a faster link,"
    " divide the sequence as well (sequence parallelism), or overlap it with its matrix product (async tensor"
    " parallelism)"
)
TRY: Final = {
    Origin.PROGRAM.word: "issue it with async_op=True before work that does not need it",
    Origin.FSDP.word: "let FSDP gather earlier (set_modules_to_forward_prefetch, or forward_prefetch=True of the older"
    " FSDP), or wrap units of another size",
    Origin.BUFFERS.word: "set broadcast_buffers=False if the ranks need not share their buffers",
    Origin.UNUSED_PARAMETERS.word: "set find_unused_parameters=False if every parameter gets a gradient",
    Origin.PIPELINE.word: "give the schedule more and smaller microbatches",
    Origin.DTENSOR.word: OF_TENSORS,
    Origin.TENSOR_PARALLEL.word: OF_TENSORS,
    Origin.EMBEDDINGS.word: "let the ids of the next batch travel while this one computes (TorchRec's"
    " TrainPipelineSparseDist), send vectors in fewer bits (qcomm_codecs_registry), or plan the tables more evenly",
    Origin.GRADIENTS.word: "send several gradients in one call while backward computes",
    Origin.OPTIMIZER.word: "gather parameters while the next forward computes, or look at what it waits for, and for a"
    " slow rank",
    Origin.ZERO.word: "let DeepSpeed gather earlier (a larger stage3_prefetch_bucket_size), or keep small parameters on"
    " every rank (a larger stage3_param_persistence_threshold)",
    Origin.MOE.word: "the program needs its result at once, so send fewer tokens (a smaller capacity_factor) or keep"
    " the ranks of an expert group (ep_size) on one host, or compute another microbatch meanwhile",
    Origin.CHECKPOINT.word: "save less often",
}
"""By origin."""

GRADIENTS: Final = {
    Origin.FSDP.word: "wrap units of another size",  # gradients leave when they are ready: nothing to prefetch
    Origin.ZERO.word: "let DeepSpeed reduce while backward computes (overlap_comm) and begin earlier (a smaller"
    " reduce_bucket_size)",
    Origin.OPTIMIZER.word: "reduce gradients while backward computes, not in the update",
    Origin.GRADIENTS.word: "send several gradients in one call, as soon as they are ready, and wait in the update only",
}
"""By origin of sharded training, for its gradients."""

ACTIVATIONS: Final = (
    Origin.TENSOR_PARALLEL.word,
    Origin.DTENSOR.word,
    Origin.EMBEDDINGS.word,
    Origin.MOE.word,
    Origin.PIPELINE.word,
)
"""Origins of what layers give to each other."""

UPDATED: Final = (
    "it brings the updated parameters to every rank at each update, so update less often (gradient_accumulation_steps)"
    " or gather while forward computes (ZeRO stage 3)"
)
"""For what ZeRO stages 1 and 2 gather: parameters of no module in particular."""

OF_UNITS: Final = "the most exposed units tell which of them wait most, and how early each is gathered"

OF_A_LIBRARY: Final = "a library issues it for that line: check whether the line has to run in every step"

TRY_OPS: Final = {
    **dict.fromkeys(
        ("send", "recv", "recv_any_source"),
        "issue it with isend or irecv (several at once: batch_isend_irecv) and wait for it after work that does not"
        " need it",
    ),
    "monitored_barrier": "it serves to find a rank that hangs, so remove it from steps that need no such check",
}
"""By op, for calls of the program itself: these ops have no async_op."""


READ_ALONE: Final = (
    "to see which collectives these are, analyze the profiler's files alone (ddptrace analyze rank-*/kineto-*.json.gz)"
)


def exposed_collective(exposed: Share, result: Result) -> Finding:
    """Name the kind of collective that exposes most."""
    said = f"{duration(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the step"
    gradients, unknown = _exposed_gradients_ns(result)
    kinds, unrecorded = _exposed_kinds(result), unrecorded_ns(result)
    if 2 * unrecorded >= exposed.ns:
        message = f"{said}. {duration(unrecorded)} of it are kernels of no recorded call: {READ_ALONE}."
    elif unknown and 2 * gradients >= exposed.ns:
        message = (
            f"{said}. Most of it carries gradients, {duration(unknown)} of them in buckets that fit no known layout, so"
            " no bucket can be named. More and smaller buckets (bucket_cap_mb) begin earlier."
        )
    elif not kinds:
        message = f"{said}: look at the collectives with the most exposed time."
    else:
        kind, contents = kinds[0], _contents(kinds)
        message = (
            f"{said}{contents}. {'The' if contents else f'{_most_of_it(kinds)}; the'} largest part is"
            f" {kind.op.rstrip('_')}{_source_words(kind)} with {duration(kind.exposed_ns or 0)}:"
            f" {_advice(kind, result)}."
        )
    return EXPOSED_COMMUNICATION("run", message)


CARRIED: Final = ("gradients", "parameters")
"""What the collectives of sharded training carry, in words."""


def _carries(kind: CollectiveDigest) -> str | None:
    """One of `CARRIED`; None for what is neither, or of unknown origin."""
    if kind.origin not in GRADIENTS:
        return None
    return "parameters" if _gathers(kind.op) or kind.op == "broadcast" else "gradients"


def _contents(kinds: Sequence[CollectiveDigest]) -> str:
    """As in ": 5.35 ms carry gradients and 4.96 ms parameters"; empty unless both are there."""
    sums = {what: sum(kind.exposed_ns or 0 for kind in kinds if _carries(kind) == what) for what in CARRIED}
    if not all(sums.values()):
        return ""
    gradients, parameters = (duration(sums[what]) for what in CARRIED)
    return f": {gradients} carry gradients and {parameters} parameters"


def _most_of_it(kinds: Sequence[CollectiveDigest]) -> str:
    """What can be said of most of what is in no bucket, where a trace may not tell who wanted it."""
    unknown = sum(kind.exposed_ns or 0 for kind in kinds if _is_of_unknown_origin(kind))
    if 2 * unknown >= sum(kind.exposed_ns or 0 for kind in kinds):
        return "The trace does not tell where most of it comes from"
    if any(_carries(kind) == "gradients" for kind in kinds):
        return "Most of it is in no bucket of DDP"
    if kinds[0].origin in ACTIVATIONS:
        return "Most of it carries activations and their gradients"
    return "Most of it is in no bucket of DDP" if unknown else "Most of it carries no gradients"


def _is_of_unknown_origin(kind: CollectiveDigest) -> bool:
    return kind.origin is None and not kind.sites and not kind.modules


HIDDEN_MIN_RATIO: Final = 0.9
"""Of a kind of collective; what is already done for it would otherwise be advised."""


def _advice(kind: CollectiveDigest, result: Result) -> str:
    if kind.hidden_ratio is not None and kind.hidden_ratio >= HIDDEN_MIN_RATIO:
        return f"{percent(kind.hidden_ratio)} of it is hidden already, so look at the timeline for what is left of it"
    if kind.origin == Origin.FSDP.word and any(row.kind == UnitKind.FSDP and row.unit for row in result.units):
        return OF_UNITS
    if kind.origin in GRADIENTS and _carries(kind) == "gradients":
        return GRADIENTS[kind.origin]
    if kind.origin == Origin.ZERO.word and not kind.modules:
        return UPDATED
    if kind.origin == Origin.PROGRAM.word and kind.through:
        return OF_A_LIBRARY
    if kind.origin == Origin.PROGRAM.word and kind.op in TRY_OPS:
        return TRY_OPS[kind.op]
    return TRY.get(kind.origin or "", "look at what it waits for, and for a slow rank")


def _gathers(op: str) -> bool:
    return op.startswith("all_gather")


def _exposed_gradients_ns(result: Result) -> tuple[float, float]:
    """Exposed ns of a typical step that carried gradients, and the part of it in buckets that are not known."""
    steps, _ = measured_steps(result.steps)
    typical = {(row.rank, row.step) for row in steps}
    sent = [row for row in result.collectives if _is_gradients(row) and (row.rank, row.step) in typical]
    unknown = sum(row.exposed_charged_ns or 0 for row in sent if row.bucket is None)
    return sum(row.exposed_charged_ns or 0 for row in sent) / len(steps), unknown / len(steps)


def _is_gradients(row: CollectiveRow) -> bool:
    """A reducer's. In a trace of another program the bucket shows it: gradients without one are the program's own."""
    return row.bucket is not None or (row.origin in BUCKETS and row.identity is Identity.RECORDED)


def _exposed_kinds(result: Result) -> list[CollectiveDigest]:
    """Those without a bucket, the most exposed first."""
    others = Table(CollectiveRow, [row for row in result.collectives if not _is_gradients(row)])
    found = collectives(replace(result, collectives=others))
    return [kind for kind in found.kinds if kind.exposed_ns] if found.per == "step" else []


def _source_words(kind: CollectiveDigest) -> str:
    """As in " (fsdp, in blocks.0 and 3 more, at train.py:42 in step)", with a library's line after the program's."""
    known = [kind.origin] if kind.origin is not None else []
    for where, names in (("in", kind.modules), ("at", kind.sites), ("through", kind.through)):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        known += [f"{where} {names[0]}{more}"] if names else []
    return f" ({', '.join(known) or 'origin unknown'})"


# Small messages that take long ----------------------------------------------------------------------------------------


LONG_NS: Final = 1_000_000
SLOW_MIN_RATIO: Final = 0.05
"""Of the step."""
WAITING_MIN_RATIO: Final = 0.5


def slow_message_findings(summary: Summary, result: Result) -> Iterator[Finding]:
    """Name the kind of small collectives that waits most, if it waits long."""
    found = match_digests(result)
    measured = {row.match for row in result.collectives if row.tells_arrival}
    told = {row.op for row in result.matches if row.match in measured}
    for kind in found.kinds:
        if kind.op in told and _is_slow(kind, found, summary):
            yield _slow(kind, result)
            return


def _is_slow(kind: MatchDigest, found: MatchDigests, summary: Summary) -> bool:
    wait, transfer = _wait_and_transfer_ns(kind)
    if kind.nbytes is None or not 0 < kind.nbytes <= FEW_NBYTES or wait + transfer < LONG_NS or not summary.window_ns:
        return False
    a_step = wait * kind.count / max(found.steps, 1)
    return wait >= WAITING_MIN_RATIO * (wait + transfer) and a_step >= SLOW_MIN_RATIO * summary.window_ns


def _wait_and_transfer_ns(kind: MatchDigest) -> tuple[int, int]:
    """Wait and transfer: by aligned clocks if these show them, else by lengths."""
    if kind.wait_ns is None or kind.transfer_ns is None:
        return kind.free_wait_ns or 0, kind.free_transfer_ns
    return kind.wait_ns, kind.transfer_ns


def _slow(kind: MatchDigest, result: Result) -> Finding:
    wait, transfer = _wait_and_transfer_ns(kind)
    lag, clocks = kind.latest, "by aligned clocks" if kind.wait_ns is not None else "from their lengths alone"
    last = f"; rank {lag.rank} is last in {percent(lag.last_ratio)} of the calls" if lag is not None else ""
    return SLOW_MESSAGE(
        "run",
        f"{kind.op.rstrip('_')} of only {size(kind.nbytes or 0)}{_site(kind, result)} takes {duration(wait + transfer)}"
        f" each time: {duration(wait)} of waiting until the last rank arrives, and {duration(transfer)} of transfer"
        f" (means of all ranks over {kind.count} calls, {clocks}){last}. A faster link does not help: look at what the"
        " last rank does before the call, or call it less often.",
    )


def _site(kind: MatchDigest, result: Result) -> str:
    sites = (line_words(row.site, row.through) for row in result.collectives if _is_of(row, kind))
    site = next(filter(None, sites), None)
    return f" (at {site})" if site else ""


def _is_of(row: CollectiveRow, kind: MatchDigest) -> bool:
    return (row.op, row.group, row.nbytes) == (kind.op, kind.group, kind.nbytes)


# Collectives behind others --------------------------------------------------------------------------------------------


QUEUED_MIN_RATIO: Final = 0.1
"""Of the step, that its collectives must expose."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """Means for one group: collectives in a step, a collective's time in the queue, and its execution."""

    calls: float
    queued_ns: float
    ran_ns: float
    exposed_ns: float  # of a step


def queue_findings(ranks: Sequence[RankFacts], result: Result, summary: Summary) -> Iterator[Finding]:
    """One for each group whose collectives wait in the queue longer than they run, if the step waits for them. On a
    device they run on a stream: a group that may also be used on the CPU has threads for that only."""
    threads = {name: count for rank in ranks for name, count in rank.queues.items()}
    steps = {(row.rank, row.step) for row in measured_steps(result.steps)[0]}
    by_group: defaultdict[str, list[CollectiveRow]] = defaultdict(list)
    for row in result.collectives:
        if row.group in threads and not row.on_device and row.queue_ns is not None and (row.rank, row.step) in steps:
            by_group[row.group].append(row)
    for group, rows in by_group.items():
        queue = _queue(rows, len(steps))
        if queue.queued_ns > queue.ran_ns and queue.exposed_ns >= QUEUED_MIN_RATIO * (summary.window_ns or 0):
            yield _queued(group, threads[group], queue, summary, _fewer(rows))


def _queue(rows: Sequence[CollectiveRow], steps: int) -> _Queue:
    return _Queue(
        len(rows) / steps,
        sum(row.queue_ns or 0 for row in rows) / len(rows),
        sum(row.comm_ns or 0 for row in rows) / len(rows),
        sum(row.exposed_charged_ns or 0 for row in rows) / steps,
    )


def _fewer(rows: Sequence[CollectiveRow]) -> str:
    """How to launch fewer and larger collectives, by what issues most of the queued ones."""
    if all(row.bucket for row in rows):
        return "raise bucket_cap_mb, if `ddptrace advise` predicts that it helps"
    of_zero = sum(row.queue_ns or 0 for row in rows if row.origin == Origin.ZERO.word)
    if 2 * of_zero > sum(row.queue_ns or 0 for row in rows):
        return "raise DeepSpeed's reduce_bucket_size and stage3_prefetch_bucket_size"
    return "one flat tensor"


def _queued(group: str, threads: int, queue: _Queue, summary: Summary, fewer: str) -> Finding:
    share = queue.exposed_ns / (summary.window_ns or 1)
    return QUEUED(
        f"group {group}",
        f"Collectives of group {group} wait in its queue longer than they run: {duration(queue.queued_ns)} against"
        f" {duration(queue.ran_ns)} (means of {queue.calls:.0f} in a step), because the backend has {threads} worker"
        f" threads and runs {threads} at a time. {duration(queue.exposed_ns)} of a step are exposed, {percent(share)}."
        f" Launch fewer and larger collectives ({fewer}), or spread them over several groups: each group has its"
        " threads, which need free processors.",
    )
