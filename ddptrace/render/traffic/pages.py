"""What `ddptrace traffic` prints and the report shows: bytes per step, by kind of call, sender and receiver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.traffic.digest import KindDigest, TrafficReport, UnitTraffic, traffic_report
from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.analysis.traffic.peers import LinkDigest, RootDigest
from ddptrace.errors import printable
from ddptrace.findings import gravest_first
from ddptrace.render.markup import Heads, folded, label, section, text
from ddptrace.render.rpc_words import pair_name
from ddptrace.render.terminal import finding_lines
from ddptrace.render.traffic.words import (
    counted_words,
    gradient_figures,
    gradient_lines,
    message_figures,
    message_lines,
    rank_words,
    root_figures,
    root_lines,
    rpc_words,
    sent_words,
    steps_words,
    uncounted_words,
    unit_figures,
    unit_lines,
    varying_words,
    why_words,
)
from ddptrace.render.words import both_ends, cut, indented, op_name, read_words
from ddptrace.units import NOT_MEASURED, calls_words, counted, size, size_range

MOST_KINDS: Final = 12  # on the terminal
MOST_LINKS: Final = 8
MOST_PAIRS: Final = 8
NO_TRAFFIC: Final = "No collective and no remote call was recorded in these steps."

ROWS_MAX: Final = 40  # in the report
ROWS_OPEN: Final = 10

KIND_HEADS: Final = (
    ("op", ""), ("group", "words"), ("ranks", ""), ("origin", "words"), ("dtype", "words"), ("calls", ""), ("in", ""),
    ("out", ""), ("sent", ""), ("in one step", ""),
)  # fmt: skip
GRADIENT_HEADS: Final = (
    ("reducer", "words"), ("parameters", ""), ("backwards", ""), ("synchronised", ""), ("expected", ""), ("seen", ""),
    ("of it", ""), ("why", "words"),
)  # fmt: skip
UNIT_HEADS: Final = (
    ("unit", "words"), ("role", "words"), ("dimension", "words"), ("calls", ""), ("bytes", ""), ("sent", ""),
)  # fmt: skip
MESSAGE_HEADS: Final = (("from → to", "words"), ("messages", ""), ("sent", ""), ("received", ""))
ROOT_HEADS: Final = (("op", ""), ("group", "words"), ("root", ""), ("calls", ""), ("sent", ""))
RPC_HEADS: Final = (
    ("caller", "words"), ("callee", "words"), ("op", "words"), ("steps", ""), ("calls", ""), ("out", ""), ("back", ""),
    ("gradients out", ""), ("gradients back", ""), ("in one step", ""),
)  # fmt: skip


def traffic_text(result: Result, report: TrafficReport) -> str:
    """The whole answer, its lines ending in a newline."""
    per = "step" if report.per == "step" else "run"
    sections = [
        [" · ".join(("ddptrace traffic", *read_words(result)))],
        list(
            kind_lines(f"Collectives per {'rank and step' if report.per == 'step' else 'rank'}", report.kinds, report)
        ),
        list(sum_lines(report)) if report.kinds else [],
        [] if report.kinds or report.rpcs else [NO_TRAFFIC],
        list(gradient_lines(report.gradients)),
        list(unit_lines(report.units, per)),
        list(link_lines(report.links, per)),
        list(message_lines(report.messages, per)),
        list(root_lines(report.roots, per)),
        list(rpc_lines(report.rpcs)),
        list(kind_lines("Once, per rank", report.once, None)),
        list(finding_lines("Findings", gravest_first(report.findings))),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def kind_lines(title: str, kinds: Sequence[KindDigest], report: TrafficReport | None) -> Iterator[str]:
    """`report`: where these are its kinds per step, so that it is said which steps."""
    if not kinds:
        return
    shown = f"{MOST_KINDS} of {len(kinds)} kinds" if len(kinds) > MOST_KINDS else ""
    told = "; ".join(filter(None, (shown, counted_words(report) if report is not None else "")))
    yield f"{title}  ({told})" if told else title
    heads = "".join(f"{head:>9}" for head in ("calls", "in", "out", "sent"))
    yield f"  {'op':<22} {'group':<8} {'origin':<17} {'dtype':<8}{heads}"
    yield from map(kind_line, kinds[:MOST_KINDS])


def kind_line(kind: KindDigest) -> str:
    what = f"{both_ends(printable(op_name(kind.op)), 22):<22} {cut(kind.group or NOT_MEASURED, 8):<8}"
    whose = f"{cut(kind.origin or NOT_MEASURED, 17):<17} {cut(kind.dtype or NOT_MEASURED, 8):<8}"
    out = kind.nbytes_out or None  # 0 is an op that works in place
    words = calls_words(kind.calls), size(kind.nbytes_in), size(out), size(kind.sent_nbytes)
    return f"  {what} {whose}{''.join(f'{word:>9}' for word in words)}"


def sum_lines(report: TrafficReport) -> Iterator[str]:
    for sentence in (
        rank_words(report),
        uncounted_words(report),
        varying_words(report.kinds),
        sent_words(report),
    ):
        yield from indented(sentence)


def link_lines(links: Sequence[LinkDigest], per: str) -> Iterator[str]:
    if not links:
        return
    some = f", the {MOST_LINKS} largest of {len(links)}" if len(links) > MOST_LINKS else ""
    yield f"Process groups  (sent per {per}{some})"
    for link in links[:MOST_LINKS]:
        where = f"{cut(link.group, 8):<8} {counted(len(link.ranks), 'rank'):<10} {hosts_words(link.hosts):<20}"
        yield f"  {where} {size(link.sent_nbytes):>9}   {group_words(link)}"


def hosts_words(hosts: Sequence[str]) -> str:
    """Nothing where nobody said on which host it was."""
    known = [host for host in hosts if host not in ("", "?")]
    return (
        f"on {both_ends(printable(known[0]), 17)}"
        if len(known) == 1
        else f"on {counted(len(known), 'host')}"
        if known
        else ""
    )


def group_words(link: LinkDigest) -> str:
    """Each direction, where that is known."""
    if len(link.ranks) == 2:
        a, b = link.ranks
        rooted = f" · {size(link.rooted_nbytes)} by a root" if link.rooted_nbytes else ""
        return f"{a} → {b} {size(link.there_nbytes)} · {b} → {a} {size(link.back_nbytes)}{rooted}"
    if link.peers_unknown:
        return "send and recv: peer not recorded"
    if link.message_nbytes == 0:
        return "who sends to whom is up to the backend"
    rest = ", the rest up to the backend" if link.message_nbytes < link.sent_nbytes else ""
    return f"{size(link.message_nbytes)} by sends{rest}"


def rpc_lines(pairs: Sequence[RpcDigest]) -> Iterator[str]:
    if not pairs:
        return
    some = f"  (the {MOST_PAIRS} with the most bytes of {len(pairs)})" if len(pairs) > MOST_PAIRS else ""
    yield f"Remote calls per step of the caller{some}"
    heads = ("out", "back", "grad out", "grad back")
    yield f"  {'caller → callee':<26} {'op':<9} {'steps':>8} {'calls':>6}{''.join(f'{head:>10}' for head in heads)}"
    yield from map(rpc_line, pairs[:MOST_PAIRS])
    for sentence in rpc_words(pairs[:MOST_PAIRS]):
        yield from indented(printable(sentence))


def rpc_line(pair: RpcDigest) -> str:
    sizes = (pair.nbytes_out, pair.nbytes_back, pair.gradient_nbytes_out, pair.gradient_nbytes_back)
    words = f"{calls_words(pair.calls):>6}{''.join(f'{size(nbytes):>10}' for nbytes in sizes)}"
    return f"  {cut(pair_name(pair), 26):<26} {cut(pair.op or NOT_MEASURED, 9):<9} {steps_words(pair):>8} {words}"


def traffic_section(result: Result) -> str:
    """Nothing where nothing was sent."""
    report = traffic_report(result)
    return section(
        "Traffic",
        sub_words(report) if report.kinds else "Bytes per step of the caller, by pair of workers.",
        _table(KIND_HEADS, map(kind_cells, report.kinds[:ROWS_MAX]), "kinds"),
        _table(GRADIENT_HEADS, map(gradient_cells, report.gradients[:ROWS_MAX]), "reducers"),
        _table(UNIT_HEADS, map(unit_cells, report.units[:ROWS_MAX]), "units"),
        _table(MESSAGE_HEADS, map(message_figures, report.messages[:ROWS_MAX]), "pairs"),
        _table(ROOT_HEADS, map(root_cells, report.roots[:ROWS_MAX]), "roots"),
        _table(RPC_HEADS, map(rpc_cells, report.rpcs[:ROWS_MAX]), "pairs"),
    )


def _table(heads: Heads, rows: Iterable[Sequence[str]], rest: str) -> str:
    """Nothing where it has no rows."""
    cells = list(rows)
    return folded(heads, cells, ROWS_OPEN, rest) if cells else ""


def sub_words(report: TrafficReport) -> str:
    what = f"Bytes per rank and step ({counted_words(report)})."
    told = what, rank_words(report), uncounted_words(report), varying_words(report.kinds), sent_words(report)
    return " ".join(filter(None, told))


def kind_cells(kind: KindDigest) -> list[str]:
    names = label(op_name(kind.op)), label(kind.group or "-"), str(kind.group_size or "-")
    return [
        *names,
        label(kind.origin or "-"),
        label(kind.dtype or "-"),
        calls_words(kind.calls),
        size(kind.nbytes_in),
        size(kind.nbytes_out or None),
        size(kind.sent_nbytes),
        size_range(kind.nbytes_min, kind.nbytes_max),
    ]


def gradient_cells(one: GradientDigest) -> list[str]:
    return [label(f"{one.reducer} {one.name}"), *map(label, gradient_figures(one)), text(why_words(one))]


def unit_cells(one: UnitTraffic) -> list[str]:
    return [*map(label, unit_figures(one))]


def root_cells(root: RootDigest) -> list[str]:
    return [*map(label, root_figures(root))]


def rpc_cells(pair: RpcDigest) -> list[str]:
    sizes = (pair.nbytes_out, pair.nbytes_back, pair.gradient_nbytes_out, pair.gradient_nbytes_back)
    names = (label(name or "?") for name in (pair.caller, pair.callee, pair.op))
    apart = size_range(pair.nbytes_min, pair.nbytes_max) if pair.steps else NOT_MEASURED
    return [*names, steps_words(pair), calls_words(pair.calls), *map(size, sizes), apart]
