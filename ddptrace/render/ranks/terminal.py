"""What the terminal says of the ranks together: who came last, who waited, what the iterations really waited for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.ranks.digest import Lag, MatchDigests, PathShare, match_digests, path_shares, told_wait_ratio
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.clocks import clocks_told
from ddptrace.render.words import WIDTH, named_bucket, op_name
from ddptrace.units import counted, duration, percent, size

MOST_LAST: Final = 3
MOST_PIECES: Final = 4
ROOM: Final = WIDTH - 19
"""Beside the heads."""
HARD_SPACE: Final = "\N{NO-BREAK SPACE}"
LEAST_RATIO: Final = 0.02
"""Of the path, that is worth a word."""


def across_lines(result: Result) -> Iterator[str]:
    """Nothing where no collective was matched, and clocks are one."""
    found, clocks = match_digests(result), list(clocks_told(result))
    if not found.count and not clocks:
        return
    yield "Across ranks"
    if found.count:
        yield from told("matched", *agreement_words(found), between=";")
    ratio = told_wait_ratio(result, found)
    if ratio is not None:
        yield from told("waiting", f"{percent(ratio)} of the communication waits for ranks that come later")
    elif found.here is not None:
        yield from told("waiting", absent_words(*found.here))
    latest = sorted((rank.lag for rank in found.ranks if rank.lag.last), key=lambda lag: (-lag.last, lag.rank))
    if latest:
        yield from told("last to arrive", *map(lag_words, latest[:MOST_LAST]), between=" ·")
    shares = [share for share in path_shares(result) if share.ratio >= LEAST_RATIO][:MOST_PIECES]
    if shares:
        yield from told("critical path", *path_words(shares, several(result)), between=" ·")
    for words in clocks:
        yield from told("clocks", words)


def told(head: str, *parts: str, between: str = "") -> list[str]:
    """Lines that break between the parts; inside of one only where it is too long for a line."""
    words = f"{between} ".join(part if len(part) > ROOM else part.replace(" ", HARD_SPACE) for part in parts)
    lines = textwrap.wrap(words, WIDTH, initial_indent=f"  {head:<16} ", subsequent_indent=" " * (WIDTH - ROOM))
    return [line.replace(HARD_SPACE, " ") for line in lines]


def agreement_words(found: MatchDigests) -> list[str]:
    """As in "64 collectives of typical steps", "both estimates of transfer agree in 61 of 64"."""
    words = [counted(found.count, "collective") + (" of typical steps" if found.steps else "")]
    if found.timed:
        words.append(f"both estimates of transfer agree in {found.agree:,} of {found.timed:,}")
    if found.only_waited:
        words.append(f"{found.only_waited:,} more are known by the host's wait alone")
    return words


def absent_words(here: int, size: int) -> str:
    return f"unknown: only {here} of {size} ranks have records here, and waiting for the others counts as transfer"


def lag_words(lag: Lag) -> str:
    """As in "rank 1 in 83 %, by 3.10 ms"."""
    return f"rank {lag.rank} in {percent(lag.last_ratio)}, by {duration(lag.blame_ns)}"


def path_words(shares: Sequence[PathShare], several_reducers: bool) -> list[str]:
    return [f"{share_name(share, several_reducers)} {percent(share.ratio)}" for share in shares]


def share_name(share: PathShare, several_reducers: bool) -> str:
    if share.rank is not None:
        return f"rank {share.rank} {printable(share.what)}"
    return f"transfer of {moved_name(share, several_reducers)}"


def moved_name(share: PathShare, several_reducers: bool) -> str:
    """Without the sizes of buckets, which are told elsewhere."""
    if share.bucket is None:
        return f"{printable(op_name(share.what))} {size(share.nbytes)}"
    reducer, _, index = share.bucket
    return named_bucket(reducer if several_reducers else None, index, None)


def several(result: Result) -> bool:
    return len({row.reducer for row in result.buckets}) > 1
