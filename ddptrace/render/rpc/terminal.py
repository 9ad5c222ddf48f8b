"""What the terminal says of remote calls: who calls whom, how often, with how many bytes, and where the time is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import function_word
from ddptrace.analysis.tables.rpc import RpcPairRow, RpcRow
from ddptrace.errors import printable
from ddptrace.render.rpc.words import pair_name
from ddptrace.render.words import NOT_MEASURED, counted, cut, duration, size

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
