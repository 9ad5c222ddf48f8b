"""Exposed communication that carries no gradient bucket: whose it is, and what can be done where."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.digest import CollectiveDigest, collectives
from ddptrace.analysis.summary import Share
from ddptrace.analysis.tables import Result
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


def exposed_collective(exposed: Share, result: Result) -> Finding:
    """With the kind of collective that exposes most."""
    said = f"{ms(exposed.ns)} of communication are exposed, {percent(exposed.ratio)} of the step"
    kind = _worst(result)
    if kind is None:
        message = f"{said}, and most of it carries no gradient bucket: look at the collectives with most exposed ms."
    else:
        advice = _advice(kind)
        message = (
            f"{said}, and most of it carries no gradient bucket. The largest part is"
            f" {kind.op.rstrip('_')}{_from(kind)}, with {ms(kind.exposed_ns or 0)}: {advice}."
        )
    return Finding("exposed-communication", "warning", "run", message)


def _advice(kind: CollectiveDigest) -> str:
    if kind.origin == Origin.FSDP.word and not kind.op.startswith("all_gather"):
        return "wrap units of another size"  # gradients leave when they are there: nothing to prefetch
    return TRY.get(kind.origin or "", "look at what it waits for, and at a slow rank")


def _worst(result: Result) -> CollectiveDigest | None:
    found = collectives(result)  # most exposed first
    kinds = (kind for kind in found.kinds if kind.origin not in BUCKETS and kind.exposed_ns)
    return next(kinds, None) if found.per == "step" else None


def _from(kind: CollectiveDigest) -> str:
    """As in " (fsdp, in blocks.0 and 3 more, at train.py:42 in step)"; nothing where nothing is known."""
    known = [kind.origin] if kind.origin is not None else []
    for where, names in (("in", kind.modules), ("at", kind.sites)):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        known += [f"{where} {names[0]}{more}"] if names else []
    return f" ({', '.join(known)})" if known else ""
