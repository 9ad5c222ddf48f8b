"""Remote calls as the terminal and the report say them: between whom, and what they take of the typical step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.summary import Share, Summary
from ddptrace.analysis.tables.rpc import RpcPairRow, RpcRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.render.words import calls_words, duration, percent

SPLIT: Final = ("compute", "exposed_comm", "exposed_memory", "rpc_wait", "idle", "unseen")
"""The parts of a step's window as they are shown: what waits for remote calls apart from the rest of idle; and where
nothing told the parts, the whole."""


def pair_name(pair: RpcDigest | RpcPairRow | RpcRow) -> str:
    """`trainer0 → server`, `?` where one of them is not known."""
    return f"{pair.caller or '?'} → {pair.callee or '?'}"


def split_ns(row: StepRow, name: str) -> int:
    """Of the step's phase or part of this name."""
    if name == "unseen":
        return 0 if row.is_seen else row.window_ns
    ns: int = getattr(row, f"{name}_ns") or 0
    return ns - (row.rpc_wait_ns or 0) if name == "idle" else ns


def waiting(summary: Summary) -> Share | None:
    """The part of idle in which the host was blocked on remote calls; None where there is none."""
    if not summary.rpc_wait_ns or not summary.window_ns:
        return None
    return Share("rpc_wait", summary.rpc_wait_ns, summary.rpc_wait_ns / summary.window_ns)


def split_parts(summary: Summary) -> Sequence[Share]:
    """The parts of the step, that one apart from the rest of idle."""
    part = waiting(summary)
    return summary.parts if part is None else tuple(_split(summary.parts, part))


def _split(parts: Sequence[Share], apart: Share) -> Iterator[Share]:
    for part in parts:
        if part.name == "idle":
            yield apart
            yield Share("idle", max(part.ns - apart.ns, 0), max(part.ratio - apart.ratio, 0.0))
        else:
            yield part


def remote_words(summary: Summary) -> str | None:
    """As in "It makes 12 remote calls and waits 10.1 ms for them (37 %)."; None without remote calls."""
    part = waiting(summary)
    if not summary.rpc_calls and part is None:
        return None
    calls = calls_words(summary.rpc_calls)
    what, them = ("remote call", "it") if calls == "1" else ("remote calls", "them")
    waits = f"does not wait for {them}"
    if part is not None:
        waits = f"waits {duration(part.ns)} for {them} ({percent(part.ratio)})"
    return f"It makes {calls} {what} and {waits}."
