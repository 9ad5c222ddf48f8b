"""Remote calls in words: between whom, what they take of the typical step, and what the terminal shows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcDigest, function_word
from ddptrace.analysis.summary import Share, Summary
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.traffic import RpcPairRow, RpcRow
from ddptrace.errors import printable
from ddptrace.render.words import cut
from ddptrace.units import NOT_MEASURED, calls_words, counted, duration, percent, size

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


# On the terminal ------------------------------------------------------------------------------------------------------


MOST_PAIRS: Final = 8


def rpc_lines(result: Result) -> Iterator[str]:
    """The pairs of workers that exchange most."""
    pairs = pairs_by_bytes(result)
    if not pairs:
        return
    some = f"  (the {MOST_PAIRS} with the most bytes of {len(pairs)})" if len(pairs) > MOST_PAIRS else ""
    yield f"Remote calls{some}"
    heads = ("calls", "out", "back", "gradients", "median call", "median run")
    words = f"{heads[0]:>6} {''.join(f'{head:>10}' for head in heads[1:4])}{heads[4]:>13}  {heads[5]}"
    yield f"  {'caller → callee':<24} {'op':<9} {words}"
    yield from map(pair_line, pairs[:MOST_PAIRS])
    yield from failures(result)


def pairs_by_bytes(result: Result) -> list[RpcPairRow]:
    """Those that exchange most first, without torch's own calls."""
    return sorted((pair for pair in result.rpc_pairs if not pair.internal), key=lambda pair: -_exchanged(pair))


def _exchanged(pair: RpcPairRow) -> int:
    return (pair.nbytes_out or 0) + (pair.nbytes_back or 0) + pair.gradient_nbytes_out + pair.gradient_nbytes_back


def failures(result: Result) -> Iterator[str]:
    failed = failed_calls(result)
    for (told, error), count in failed[:MOST_PAIRS]:
        yield f"  {counted(count, 'call')} failed: {printable(told + (f' ({error})' if error else ''))}"
    rest = sum(count for _, count in failed[MOST_PAIRS:])
    if rest:
        yield f"  {counted(rest, 'more call', 'more calls')} failed"


def failed_calls(result: Result) -> list[tuple[tuple[str, str], int]]:
    """Which calls failed, by what, and how often; the most frequent first."""
    failed = (row for row in result.rpcs if row.failed and not row.internal)
    return Counter((_named(row), row.error or "") for row in failed).most_common()


def _named(row: RpcRow) -> str:
    return f"{pair_name(row)} {function_word(row.function)}"


def pair_line(pair: RpcPairRow) -> str:
    names = cut(pair_name(pair), 24)
    gradients = pair.gradient_nbytes_out + pair.gradient_nbytes_back
    sizes = size(pair.nbytes_out), size(pair.nbytes_back if pair.op else None), size(gradients)
    bytes_words = f"{pair.calls:>6} {''.join(f'{word:>10}' for word in sizes)}"
    times = f"{duration(pair.call_median_ns):>13}  {run_words(pair)}"
    return f"  {names:<24} {pair.op or NOT_MEASURED:<9} {bytes_words}{times}"


def run_words(pair: RpcPairRow) -> str:
    """As in "7.97 ms of 3" where not every call was seen to run."""
    of = f" of {pair.runs}" if 0 < pair.runs < pair.calls else ""
    return f"{duration(pair.run_median_ns)}{of}"
