"""What a reader is told of sends and receives, by pair of ranks, and of ops with a root, by root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.traffic.peers import FROM_ROOT, MessageDigest, RootDigest
from ddptrace.errors import printable
from ddptrace.render.words import NOT_MEASURED, both_ends, calls_words, op_name, shortened, size

MOST_PAIRS: Final = 12
MOST_ROOTS: Final = 8


def message_lines(messages: Sequence[MessageDigest], per: str) -> Iterator[str]:
    if not messages:
        return
    some = f"; the {MOST_PAIRS} largest of {len(messages)}" if len(messages) > MOST_PAIRS else ""
    yield f"Sends and receives  (per {per}, as each of the two ranks recorded them{some})"
    yield f"  {'from → to':<16}{'messages':>10}{'sent':>12}{'received':>12}"
    for one in messages[:MOST_PAIRS]:
        pair, calls, sent, received = message_figures(one)
        yield f"  {pair:<16}{calls:>10}{sent:>12}{received:>12}"


def message_figures(one: MessageDigest) -> tuple[str, str, str, str]:
    pair = f"{one.source} → {one.destination}"
    return pair, calls_words(one.messages), size(one.sent_nbytes), size(one.received_nbytes)


def root_lines(roots: Sequence[RootDigest], per: str) -> Iterator[str]:
    if not roots:
        return
    some = f", the {MOST_ROOTS} largest of {len(roots)}" if len(roots) > MOST_ROOTS else ""
    yield f"Ops with a root  (per {per}; sent by all ranks together{some})"
    yield f"  {'op':<22} {'group':<8} {'root':<16}{'calls':>9}{'sent':>12}"
    for one in roots[:MOST_ROOTS]:
        op, group, root, calls, sent = root_figures(one)
        yield f"  {both_ends(op, 22):<22} {shortened(group, 8):<8} {root:<16}{calls:>9}{sent:>12}"


def root_figures(one: RootDigest) -> tuple[str, str, str, str, str]:
    way = "from" if one.op in FROM_ROOT else "to"
    group = printable(one.group) or NOT_MEASURED
    return op_name(one.op), group, f"{way} rank {one.root}", calls_words(one.calls), size(one.sent_nbytes)
