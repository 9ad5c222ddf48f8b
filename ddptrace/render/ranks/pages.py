"""What the terminal and the report say of the ranks together: who came last, who waited, what the iterations really
waited for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddptrace.analysis.ranks.digest import (
    Lag,
    MatchDigest,
    MatchDigests,
    PathShare,
    RankDigest,
    match_digests,
    path_shares,
    told_wait_ratio,
)
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.errors import printable
from ddptrace.render.clocks import clock_sub, clock_table, clocks_told
from ddptrace.render.markup import folded, label, section, table, text
from ddptrace.render.steps import contention_section, jitter_section
from ddptrace.render.words import WIDTH, named_bucket, op_name
from ddptrace.schema import Evidence
from ddptrace.units import NOT_MEASURED, counted, duration, millis, percent, rate, size

ROWS_MAX: Final = 40
ROWS_OPEN: Final = 8
NAMED_SUB: Final = (
    "From a replay of the run in which this rank's phase is like that of the other ranks: what every rank would save"
    " per step."
)
MET_SUB: Final = (
    "A collective ends on no rank before the last rank has arrived. Skew: from the first arrival to the last, median"
    " and p95. Wait: until the last arrival, mean over ranks. Transfer: the rest, by aligned clocks, and without clocks"
    " as the shortest execution. Last by: from the second-to-last arrival to the last, median."
)
PATH_SUB: Final = (
    "Followed backwards from the end of each step: through a rank's own time to the collective it waited for, then"
    " through the time of the rank that arrived last. Work that is not on the path can become faster without making a"
    " step shorter."
)
INFERRED: Final = " Where begins were inferred (evidence callback or host), a rank arrives when it makes the call."
CLOCK_FREE: Final = (
    " Where clocks cannot be compared, a wait is the time by which an execution exceeds the shortest one."
)

SUSPECT_HEADS: Final = (
    ("rank", ""), ("host", "words"), ("phase", ""), ("cause", ""), ("costs ms", ""), ("of step", ""), ("95 %", ""),
    ("when", "words"),
)  # fmt: skip
MET_HEADS: Final = (
    ("collective", "words"), ("ranks", ""), ("matched", ""), ("skew", ""), ("p95", ""), ("wait", ""), ("transfer", ""),
    ("clock-free", ""), ("agree", ""), ("busbw", ""), ("last most often", "words"),
)  # fmt: skip
RANK_HEADS: Final = (
    ("rank", ""), ("collectives", ""), ("came last", ""), ("last by", ""), ("waits ms", ""),
    ("of its communication", ""),
)  # fmt: skip

MOST_LAST: Final = 3
MOST_PIECES: Final = 4
ROOM: Final = WIDTH - 19
"""Of a line on the terminal, beside the heads."""
HARD_SPACE: Final = "\N{NO-BREAK SPACE}"
PATH_MIN_RATIO: Final = 0.02
"""Of the critical path, that is worth a word."""


def across_body(result: Result, picture: Mapping[str, str]) -> list[str]:
    """From who is named to what the clocks are."""
    found = match_digests(result)
    both = met_table(result, found) + rank_table(found)
    return [
        section("Ranks that the others wait for", NAMED_SUB, suspect_table(result)),
        section("The same collective on all ranks", met_sub(result, found), picture["matches"], both),
        section("Critical path", PATH_SUB, picture["path"]),
        contention_section(result),
        jitter_section(result, picture["jitter"]),
        section("Clocks", clock_sub(result), clock_table(result)),
    ]


def suspect_table(result: Result) -> str:
    shown = result.suspects[:ROWS_MAX]
    notes = [text(row.evidence) for row in shown]
    return table(SUSPECT_HEADS, map(suspect_cells, shown), notes) if shown else ""


def suspect_cells(row: SuspectRow) -> list[str]:
    often = "nearly every step" if row.persistent else "more in some steps than in others"
    return [
        str(row.rank),
        label(row.host),
        label(row.phase),
        label(row.cause),
        millis(row.cost_ns),
        label(percent(row.cost_ratio)),
        f"{millis(row.low_ns)} – {millis(row.high_ns)}",
        often,
    ]


def met_sub(result: Result, found: MatchDigests) -> str:
    inferred = {Evidence.CALLBACK, Evidence.HOST} & {
        row.evidence for row in result.collectives if row.match is not None
    }
    agree = f" Both estimates of the transfer agree in {found.agree:,} of {counted(found.timed, 'collective')}."
    free = any(rank.free for rank in found.ranks)
    most = f" The {ROWS_MAX} kinds with most waiting of {len(found.kinds)}." if len(found.kinds) > ROWS_MAX else ""
    absent = f" Waits are {absent_words(*found.here)}." if found.here is not None else ""
    how = (INFERRED if inferred else "") + (CLOCK_FREE if free else "")
    return MET_SUB + absent + how + (agree if found.timed else "") + most


def met_table(result: Result, found: MatchDigests) -> str:
    layouts = {kind.bucket[:2] for kind in found.kinds if kind.bucket is not None}
    apart = several(result), len({reducer for reducer, _ in layouts}) < len(layouts)
    rows = [met_cells(kind, kind_name(kind, *apart)) for kind in found.kinds[:ROWS_MAX]]
    return folded(MET_HEADS, rows, ROWS_OPEN, "kinds") if rows else ""


def met_cells(kind: MatchDigest, name: str) -> list[str]:
    return [
        label(name),
        str(kind.ranks),
        f"{kind.count:,}",
        skew_words(kind),
        duration(kind.skew_p95_ns),
        duration(kind.free_wait_ns if kind.wait_ns is None else kind.wait_ns),
        duration(kind.transfer_ns),
        NOT_MEASURED if kind.partial else duration(kind.free_transfer_ns),
        f"{kind.agree:,} of {kind.timed:,}" if kind.timed else NOT_MEASURED,
        rate(kind.busbw_bytes_per_s),
        label(last_words(kind.latest)),
    ]


def kind_name(kind: MatchDigest, several_reducers: bool, several_layouts: bool) -> str:
    if kind.bucket is None:
        return f"{op_name(kind.op)} · {size(kind.nbytes)}" + (f" · group {kind.group}" if kind.group else "")
    reducer, layout, index = kind.bucket
    named = named_bucket(reducer if several_reducers else None, index, kind.nbytes)
    return f"{named} · layout {layout}" if several_layouts else named


def skew_words(one: MatchDigest) -> str:
    """With how sure it is, where ranks have different clocks."""
    sure = f" ± {duration(one.uncertainty_ns)}" if one.uncertainty_ns else ""
    return f"{duration(one.skew_ns)}{sure}"


def last_words(lag: Lag | None) -> str:
    return NOT_MEASURED if lag is None else f"rank {lag.rank}, {percent(lag.last_ratio)}"


def rank_table(found: MatchDigests) -> str:
    """Of many ranks those that came last most often."""
    shown = sorted(found.ranks, key=lambda one: (-one.lag.last_ratio, one.lag.rank))[:ROWS_MAX]
    told = any(rank.lag.last for rank in found.ranks)
    rows = [rank_cells(rank, told=told) for rank in (shown if len(shown) > ROWS_OPEN else found.ranks)]
    return folded(RANK_HEADS, rows, ROWS_OPEN, "ranks") if rows else ""


def rank_cells(rank: RankDigest, *, told: bool) -> list[str]:
    """`told`: of any collective it is known who came last."""
    lag = rank.lag
    last = f"{lag.last:,} · {label(percent(lag.last_ratio))}" if told else NOT_MEASURED
    return [
        str(lag.rank),
        f"{rank.met:,}",
        last,
        duration(lag.blame_ns),
        millis(rank.waits_ns),
        label(percent(rank.wait_ratio)),
    ]


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
    shares = [share for share in path_shares(result) if share.ratio >= PATH_MIN_RATIO][:MOST_PIECES]
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
