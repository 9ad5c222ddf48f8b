"""What the terminal and the report say of devices: each rank's device time, its collectives, and what launched the
work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.collectives.digest import CollectiveDigest, Collectives, collectives, weakest_identity
from ddptrace.analysis.collectives.execution import weakest
from ddptrace.analysis.device.digest import LaunchDigest, ScopeDigest, device_parts, launches, scopes
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import Population, RankRow
from ddptrace.errors import printable
from ddptrace.render.markup import folded, label, text
from ddptrace.render.words import IDENTIFIED, WIDTH, both_ends, cut, op_name, origin_words, through_words
from ddptrace.units import calls_words, counted, duration, millis, percent, rate, size_range

MOST_RANKS: Final = 8  # on the terminal
MOST_KINDS: Final = 5
MOST_SCOPES: Final = 5
PER_WORDS: Final = {"step": "rank-step", "rank": "rank"}
LAUNCHED: Final = "  launched: only work whose launch is in the file; most other was queued before it began"

ROWS_MAX: Final = 40  # in the report
ROWS_OPEN: Final = 10
COLLECTIVES_SUB: Final = (
    "Calls and exposed time per {per}. Bandwidth as nccl-tests define it: bytes over time, and times the op's factor."
)
ORIGINS_SUB: Final = " Below each: what it is for, and the modules and lines that it comes from."
LAUNCH_SUB: Final = (
    "The host puts work into the device's queue. While it is ahead, work waits there (the delay from launch to start);"
    " when a launch comes too late, its stream has run dry. Idle for the host: nothing ran and nothing waited in the"
    " queue, so neither faster kernels nor a faster network would have helped. Means per step."
)

COLLECTIVE_HEADS: Final = (
    ("op", ""), ("group", "words"), ("ranks", ""), ("size", ""), ("calls", ""), ("mean ms", ""), ("exposed ms", ""),
    ("hidden", ""), ("algbw", ""), ("busbw", ""), ("evidence, identified by", "words"),
)  # fmt: skip
LAUNCH_HEADS: Final = tuple(
    (title, "")
    for title in (
        "rank",
        "launches",
        "delay p50",
        "p90",
        "max",
        "too late",
        "idle ms",
        "for the host ms",
        "of step",
        "launch-bound",
    )
)


def device_lines(result: Result) -> Iterator[str]:
    """Device time of each rank over its profiler windows; of many ranks the most exposed."""
    known = [(row, row.all) for row in result.ranks if row.all is not None]
    if not known:
        return
    worst = sorted(known, key=lambda one: -one[1].exposed_ns)[:MOST_RANKS] if len(known) > MOST_RANKS else known
    some = (
        f"the {MOST_RANKS} most exposed of {len(known)} ranks" if len(worst) < len(known) else "all that was profiled"
    )
    yield f"Device time  ({some}{'' if result.steps else '; no step was found'})"
    heads = ("span ms", "compute ms", "exposed ms", "copies ms", "idle ms")
    yield f"  {'rank':<10} {''.join(f'{head:>12}' for head in heads)} {'hidden':>8}"
    lines = [line for row, population in worst for line in rank_lines(row, population)]
    yield from lines
    if any(line.startswith("  launched") for line in lines):
        yield LAUNCHED


def rank_lines(row: RankRow, population: Population) -> Iterator[str]:
    """A rank's line, and a second one where work whose launch was seen tells something else."""
    yield population_line(str(row.rank), population)
    if row.with_launch is not None and row.with_launch != population:
        yield population_line("launched", row.with_launch)


def population_line(name: str, population: Population) -> str:
    compute, exposed, copies, idle = (part.ns for part in device_parts(population))
    times = "".join(f"{millis(ns):>12}" for ns in (population.span_ns, compute, exposed, copies, idle))
    return f"  {name:<10} {times} {percent(population.overlap_ratio):>8}"


def collective_lines(result: Result) -> Iterator[str]:
    """The kinds of collectives that cost most."""
    found = collectives(result)
    if not found.kinds:
        return
    yield f"Collectives  ({kinds_shown(found)})"
    heads = f"{'ranks':>5} {'size':>17} {'calls':>6} {'mean ms':>8} {'exposed ms':>10} {'hidden':>6} {'busbw':>9}"
    yield f"  {'op':<17} {'group':<8} {heads}"
    for kind in found.kinds[:MOST_KINDS]:
        yield collective_line(kind)
        yield f"    {both_ends(printable(origin_words(kind)), WIDTH - 4)}"
        if kind.through:
            yield f"      {both_ends(printable(through_words(kind)), WIDTH - 6)}"
    yield f"  {rests_on(found.kinds)}"


def kinds_shown(found: Collectives) -> str:
    of = f"{MOST_KINDS} of {len(found.kinds)} kinds, " if len(found.kinds) > MOST_KINDS else ""
    return f"{of}calls and exposed time per {found.per}, mean over {counted(found.count, PER_WORDS[found.per])}"


def collective_line(kind: CollectiveDigest) -> str:
    what = (
        f"{both_ends(printable(op_name(kind.op)), 17):<17} {cut(kind.group or '-', 8):<8} {kind.group_size or '-':>5}"
    )
    sizes = f"{size_range(kind.nbytes_min, kind.nbytes_max):>17} {calls_words(kind.calls):>6}"
    times = f"{millis(kind.mean_ns):>8} {millis(kind.exposed_ns):>10} {percent(kind.hidden_ratio):>6}"
    return f"  {what} {sizes} {times} {rate(kind.busbw_bytes_per_s):>9}"


def rests_on(kinds: Sequence[CollectiveDigest]) -> str:
    """As in "Evidence device; identified by annotation"."""
    evidence = weakest(kind.evidence for kind in kinds)
    identity = weakest_identity(kind.identity for kind in kinds)
    ran = "nothing tells when they ran" if evidence is None else f"evidence {evidence}"
    return f"{ran}; identified by {IDENTIFIED[identity]}"


def scope_lines(result: Result) -> Iterator[str]:
    """What launched most of the devices' work: by module where the traces tell, else by annotation, else operator."""
    kind, found = next(iter(scopes(result).items()), ("", []))
    if not found:
        return
    of = f"{MOST_SCOPES} of {len(found)}, " if len(found) > MOST_SCOPES else ""
    yield f"Device time by {kind} around the launch  ({of}mean per rank)"
    yield f"  {'device ms':>10} {'of all':>7} {'events':>8}  {kind}"
    yield from map(scope_line, found[:MOST_SCOPES])


def scope_line(scope: ScopeDigest) -> str:
    figures = f"{millis(scope.device_ns):>10} {percent(scope.ratio):>7} {calls_words(scope.events):>8}"
    instances = instances_words(scope)
    return f"  {figures}  {cut(scope.name, WIDTH - 31 - len(instances))}{instances}"


def instances_words(scope: ScopeDigest) -> str:
    """As in " (36 modules)"; empty for one."""
    return f" ({scope.instances} modules)" if scope.instances > 1 else ""


def collective_table(result: Result) -> str:
    found = collectives(result)
    kinds = found.kinds[:ROWS_MAX]
    rows, notes = list(map(collective_cells, kinds)), list(map(origin_note, kinds))
    return folded(COLLECTIVE_HEADS, rows, ROWS_OPEN, "kinds", notes) if kinds else ""


def collective_sub(result: Result) -> str:
    found = collectives(result)
    said = COLLECTIVES_SUB.format(per="rank and step" if found.per == "step" else found.per)
    said += ORIGINS_SUB if any(map(origin_note, found.kinds)) else ""
    return said + (f" The {ROWS_MAX} most exposed of {len(found.kinds)} kinds." if len(found.kinds) > ROWS_MAX else "")


def collective_cells(kind: CollectiveDigest) -> list[str]:
    return [
        label(op_name(kind.op)),
        label(kind.group or "-"),
        str(kind.group_size or "-"),
        size_range(kind.nbytes_min, kind.nbytes_max),
        calls_words(kind.calls),
        millis(kind.mean_ns),
        millis(kind.exposed_ns),
        label(percent(kind.hidden_ratio)),
        rate(kind.algbw_bytes_per_s),
        rate(kind.busbw_bytes_per_s),
        label(f"{kind.evidence or 'not measured'}, {IDENTIFIED[kind.identity]}"),
    ]


def origin_note(kind: CollectiveDigest) -> str:
    """Nothing where nobody recorded where it comes from."""
    known = kind.origin or kind.sites or kind.modules
    return text(" · ".join(filter(None, (origin_words(kind), through_words(kind))))) if known else ""


def launch_table(result: Result) -> str:
    """Of many ranks those whose device waited longest."""
    known = sorted(launches(result), key=lambda one: (-one.host_idle_ns, one.rank))[:ROWS_MAX]
    shown = known if len(known) > ROWS_OPEN else sorted(known, key=lambda one: one.rank)
    return folded(LAUNCH_HEADS, list(map(launch_cells, shown)), ROWS_OPEN, "ranks") if known else ""


def launch_cells(rank: LaunchDigest) -> list[str]:
    return [
        str(rank.rank),
        calls_words(rank.launched),
        duration(rank.delay_p50_ns),
        duration(rank.delay_p90_ns),
        duration(rank.delay_max_ns),
        label(percent(rank.late_ratio)),
        millis(rank.idle_ns),
        millis(rank.host_idle_ns),
        label(percent(rank.host_idle_ns / rank.window_ns if rank.window_ns else None)),
        f"{rank.bound_steps:,} of {rank.steps:,}",
    ]
