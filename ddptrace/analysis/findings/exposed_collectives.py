"""Exposed communication of which no gradient bucket can be named: whose it is, and what can be done where."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ddptrace.analysis.collectives.digest import CollectiveDigest, collectives
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Share, typical_steps
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.wording import ms, percent
from ddptrace.load.tables import Finding
from ddptrace.schema import Origin

BUCKETS: Final = (Origin.GRADIENTS.word, Origin.HOOK.word)

TRY: Final = {
    Origin.PROGRAM.word: "issue it with async_op=True before work that does not need it",
    Origin.FSDP.word: "let FSDP gather earlier (set_modules_to_forward_prefetch, or forward_prefetch=True of the older"
    " FSDP), or wrap units of another size",
    Origin.BUFFERS.word: "broadcast_buffers=False leaves it out, where the ranks need not share their buffers",
    Origin.UNUSED_PARAMETERS.word: "find_unused_parameters=False leaves it out, where every parameter gets a gradient",
    Origin.PIPELINE.word: "give the schedule more and smaller microbatches",
    Origin.DTENSOR.word: "its result is needed at once, so shard over fewer ranks or a faster link",
}
"""By origin."""

TRY_OPS: Final = {
    **dict.fromkeys(
        ("send", "recv", "recv_any_source"),
        "issue it with isend or irecv (several at once: batch_isend_irecv) and wait for it after work that does not"
        " need it",
    ),
    "monitored_barrier": "it is there to find a rank that hangs, so leave it out of steps that need not be watched",
}
"""By op, where the program called it: these have no async_op."""


def exposed_collective(exposed: Share, result: Result) -> Finding:
    """With the kind of collective that exposes most."""
    said = f"{ms(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the step"
    gradients, unknown = _gradients(result)
    kind = _worst(result)
    if unknown and 2 * gradients >= exposed.ns:
        message = (
            f"{said}, and most of it carries gradients, {ms(unknown)} of them in buckets that fit no known layout, so"
            " none can be named: more and smaller buckets (bucket_cap_mb) begin earlier."
        )
    elif kind is None:
        message = f"{said}, and most of it carries no gradients: look at the collectives with most exposed ms."
    else:
        message = (
            f"{said}, and most of it carries no gradients. The largest part of that is"
            f" {kind.op.rstrip('_')}{_from(kind)}, with {ms(kind.exposed_ns or 0)}: {_advice(kind)}."
        )
    return Finding("exposed-communication", "warning", "run", message)


def _advice(kind: CollectiveDigest) -> str:
    if kind.origin == Origin.FSDP.word and not kind.op.startswith("all_gather"):
        return "wrap units of another size"  # gradients leave when they are there: nothing to prefetch
    if kind.origin == Origin.PROGRAM.word and kind.op in TRY_OPS:
        return TRY_OPS[kind.op]
    return TRY.get(kind.origin or "", "look at what it waits for, and at a slow rank")


def _gradients(result: Result) -> tuple[float, float]:
    """Exposed ns of a typical step that carried gradients, and the part of it in buckets that are not known."""
    steps, _ = typical_steps(result.steps)
    typical = {(row.rank, row.step) for row in steps}
    sent = [row for row in result.collectives if _is_gradients(row) and (row.rank, row.step) in typical]
    unknown = sum(row.exposed_charged_ns or 0 for row in sent if row.bucket is None)
    return sum(row.exposed_charged_ns or 0 for row in sent) / len(steps), unknown / len(steps)


def _is_gradients(row: CollectiveRow) -> bool:
    """Where a foreign trace does not tell who wanted it, by the bucket it carried."""
    return row.bucket is not None or row.origin in BUCKETS


def _worst(result: Result) -> CollectiveDigest | None:
    others = Table(CollectiveRow, [row for row in result.collectives if not _is_gradients(row)])
    found = collectives(replace(result, collectives=others))  # most exposed first
    return next((kind for kind in found.kinds if kind.exposed_ns), None) if found.per == "step" else None


def _from(kind: CollectiveDigest) -> str:
    """As in " (fsdp, in blocks.0 and 3 more, at train.py:42 in step)"; nothing where nothing is known."""
    known = [kind.origin] if kind.origin is not None else []
    for where, names in (("in", kind.modules), ("at", kind.sites)):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        known += [f"{where} {names[0]}{more}"] if names else []
    return f" ({', '.join(known)})" if known else ""
