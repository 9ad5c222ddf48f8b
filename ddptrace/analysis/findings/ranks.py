"""Finds ranks that are late or compute longer than others, what that costs and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import fmean, median
from typing import Final

from ddptrace.analysis.matching.calls import Partial
from ddptrace.analysis.ranks import causes
from ddptrace.analysis.ranks.blame import Blame, Crowding, Early, Seeming
from ddptrace.analysis.ranks.digest import WAITING_MIN_RATIO, MatchedTime, matched_time
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, measured_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES, SuspectRow
from ddptrace.findings import (
    LATE_RANK,
    PROCESSORS_CROWDED,
    REPLAY_OFF,
    RUN_TOO_SHORT,
    SLOW_LINK,
    UNEVEN_COMPUTE,
    WAITING_FOR_RANKS,
    Finding,
)
from ddptrace.units import counted, duration, named, percent

ADVICE: Final[Mapping[str, str]] = {
    "data": "Look at what its data loader reads, and from where.",
    causes.COLLECTION: "Call gc.freeze() before the loop, or gc.disable() and then gc.collect() in the same step on all"
    " ranks.",
    causes.QUOTA: "Give it more processor time, or start fewer threads.",
    causes.CONTENTION: "Look at what else runs on its machine, and at its number of threads.",
    causes.SLOW_DEVICE: "Look at its clock rate, its temperature and who else uses it.",
}
"""By cause."""
COUNTED_TOO_MUCH: Final = 1.05
"""So many times the time that can be true, the system's own count is told too."""
LOOK: Final = "Look there before you change buckets or the network."


def blame_findings(blame: Blame, hosts: int) -> Iterator[Finding]:
    """`hosts`: number of hosts that took part. If there are several, a late rank's host is named."""
    if blame.partial:
        yield _absent(blame.partial)
    if blame.off_ratio is not None:
        yield _replay_off(blame.off_ratio)
    for suspect in blame.suspects:
        if suspect.cause == causes.SLOW_LINK:
            yield _slow_link(suspect)
        else:
            yield _late(suspect, f" on host {suspect.host}" if hosts > 1 else "")
    if blame.seeming is not None:
        yield _too_short(blame.seeming)
    if blame.crowding is not None:
        yield _crowded(blame.crowding)


def _absent(groups: Sequence[Partial]) -> Finding:
    """The group that misses most ranks stands for the others."""
    one = max(groups, key=lambda group: group.size - group.here)
    where = f"group {one.name}" if one.name else "the unnamed group"
    verb, more = "is" if one.here == 1 else "are", f" ({len(groups)} groups miss ranks)" if len(groups) > 1 else ""
    return REPLAY_OFF(
        "run",
        f"No rank is named as late: only {one.here} of {one.size} ranks of {where} {verb} compared here{more}, and"
        " waiting for the others counts as transfer. So waits cannot be separated from transfers, and there is no"
        " critical path. Analyze all ranks together to get both.",
    )


def _replay_off(off_ratio: float) -> Finding:
    return REPLAY_OFF(
        "run",
        f"No rank is named as late: by the ranks' clocks, {percent(off_ratio)} of the time does not fit who waited for"
        " whom. Align the clocks, or record the ranks on one machine.",
        "info",
    )


def _too_short(one: Seeming) -> Finding:
    return RUN_TOO_SHORT(
        f"rank {one.rank}",
        f"Rank {one.rank} seems to make the others wait for {duration(one.cost_ns)} of a step"
        f" ({_of_typical(one)}), but {one.steps} steps are too few to rule out chance: trace {one.steps_needed}"
        " or more.",
    )


def early_finding(one: Early, summary: Summary) -> Finding:
    """Name the rank that cost the few recorded steps most."""
    where = "the one step" if one.steps == 1 else f"the {one.steps} steps"
    often = f" Of all ranks it cost most in {one.dear} of them." if one.steps > 1 else ""
    doing = f"its {one.phase} phase" if one.phase != "other" else "its work outside of forward, backward and update"
    return LATE_RANK(
        f"rank {one.rank}",
        f"Rank {one.rank} makes the others wait in {where} recorded: that costs every rank {duration(one.cost_ns)} of a"
        f" step ({_of_typical(one)}), most of it in {doing}{_longer(one)}.{often}{_apart(one.rank, summary)} {LOOK}"
        f" So few steps do not tell whether it is always this rank: record {one.steps_needed} or more.",
    )


def _longer(one: Early) -> str:
    """How the phase compares with the others': the longest phase on the critical path may be as long on all ranks."""
    return f", which takes {duration(one.longer_ns)} longer than the others'" if one.longer_ns > 0 else ""


def _of_typical(one: Early | Seeming | SuspectRow) -> str:
    """As in "52 % of the typical step of 1.22 s"."""
    if not one.cost_ratio:
        return percent(one.cost_ratio)
    return f"{percent(one.cost_ratio)} of the typical step of {duration(one.cost_ns / one.cost_ratio)}"


def _apart(rank: int, summary: Summary) -> str:
    """What its device does unlike the others', where that is known."""
    own = next((one for one in summary.ranks if one.rank == rank), None)
    others = [one for one in summary.ranks if one.rank != rank]
    if own is None or own.compute_ns is None or own.idle_ns is None or not others:
        return ""
    compute, idle = (median(getattr(one, name) or 0 for one in others) for name in ("compute_ns", "idle_ns"))
    return (
        f" In a step it computes for {duration(own.compute_ns)} and idles for {duration(own.idle_ns)}; the others"
        f" compute for {duration(compute)} and idle for {duration(idle)} (median)."
    )


COUNTED_AS: Final = {
    False: "The breakdown counts this waiting as compute and communication.",
    True: "Their devices are idle for at least as long, since nothing is launched for them meanwhile.",
}
"""By whether the ranks compute on devices."""


def _crowded(crowding: Crowding) -> Finding:
    ratio, counted_ns = crowding.queued_ns / crowding.step_ns, crowding.counted_ns
    is_cut = counted_ns > COUNTED_TOO_MUCH * crowding.queued_ns
    cut = f"; the system counts {duration(counted_ns)}, more than there is beside their work" if is_cut else ""
    return PROCESSORS_CROWDED(
        "run",
        f"All ranks wait for a processor for {duration(crowding.queued_ns)} of a step ({percent(ratio)} of"
        f" {duration(crowding.step_ns)}, median of the ranks{cut}), so steps take longer than the program needs."
        f" {COUNTED_AS[crowding.on_device]} Start fewer threads or processes, and let nothing else run there.",
    )


def _late(one: SuspectRow, place: str) -> Finding:
    doing = f"its {one.phase} phase" if one.phase != "other" else "its work outside of forward, backward and update"
    if one.cause != one.phase:
        what = f"{one.cause}, mostly in {doing},"
    else:
        what = f"its own work, mostly {doing}," if one.all_phases else doing
    return LATE_RANK(
        f"rank {one.rank}",
        f"Rank {one.rank}{place} makes the others wait: {what} costs every rank {_cost(one)}; {one.evidence}."
        f" {ADVICE.get(one.cause, LOOK)}",
    )


def _slow_link(one: SuspectRow) -> Finding:
    return SLOW_LINK(
        f"host {one.host}",
        f"Host {one.host} (rank {one.rank}) has a slow link, which costs every rank {_cost(one)}; {one.evidence}. Look"
        " at its network adapter, cable and switch port, and at who else sends over them.",
    )


def _cost(one: SuspectRow) -> str:
    often = "in nearly every step" if one.persistent else "in some steps more than in others"
    return (
        f"{duration(one.cost_ns)} of a step ({_of_typical(one)}; 95 % interval {duration(one.low_ns)} to"
        f" {duration(one.high_ns)}; {one.steps} steps), {often}"
    )


# Waiting for ranks, whichever they are --------------------------------------------------------------------------------


def peer_findings(result: Result) -> Iterator[Finding]:
    time = matched_time(result)
    if time is not None and time.waiting_ratio >= WAITING_MIN_RATIO:
        yield WAITING_FOR_RANKS(
            "run",
            f"{percent(time.waiting_ratio)} of the communication is waiting for ranks that come late:"
            f" {time.collectives} collectives{_where(time)}, matched across ranks, run for {_each(time, time.ran_ns)}"
            " on a rank (mean of the ranks; overlapping collectives all count). Only"
            f" {_each(time, time.transfer_ns)} of that are transfer (the shortest execution over the ranks). Make the"
            " ranks more even; a faster network would not help. The busbw of single ranks includes this waiting.",
        )


def _where(time: MatchedTime) -> str:
    kind = "typical step" if time.typical else "step"
    return f" of {counted(time.steps, kind)}" if time.steps else ""


def _each(time: MatchedTime, ns: int) -> str:
    """The time of one step, or the sum if none ran in a step."""
    return f"{duration(ns / time.steps)} a step" if time.steps else duration(ns)


# Ranks that compute longer --------------------------------------------------------------------------------------------


DEVICE_MIN_RATIO: Final = 1.15
HOST_MIN_RATIO: Final = 1.3
"""Longest / shortest compute: on the host it also varies with what else runs there."""
STEP_MIN_RATIO: Final = 0.05
"""Of the step, that they must differ by."""
EVERY_MIN_RATIO: Final = 0.8
"""Of the steps, in which the rank that computes longest must do so."""
QUEUED_TIMES: Final = 2
"""So many times what ranks wait for a processor, which counts as compute."""
MORE_MIN_RATIO: Final = 1.05
"""Pieces of device work of the slower ranks / of the others."""

ByRank = Mapping[int, Mapping[int, int]]
"""Compute in ns by rank and step."""


def uneven_findings(result: Result, summary: Summary, blame: Blame) -> list[Finding]:
    """One, where some ranks compute longer. Not where something else takes their processors away: its finding says
    so."""
    steps = measured_steps(result.steps)[0]
    compute: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in steps:
        if row.compute_ns is not None and row.profiled:
            compute[row.rank][row.step] = row.compute_ns
    means = {rank: fmean(mine.values()) for rank, mine in compute.items()}
    if len(means) < 2 or len(means) < len(result.ranks) or not summary.window_ns:
        return []
    longest, shortest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    held = {one.rank for one in blame.suspects if one.cause not in LOCAL_PHASES}
    on_device = any(row.gpu_events for row in result.ranks)
    queued_ns = blame.crowding.queued_ns if blame.crowding is not None and not on_device else 0
    least = DEVICE_MIN_RATIO if on_device else HOST_MIN_RATIO
    if (
        longest in held
        or means[longest] < least * means[shortest]
        or means[longest] - means[shortest] < max(STEP_MIN_RATIO * summary.window_ns, QUEUED_TIMES * queued_ns)
        or not _is_in_most_steps(compute, longest, shortest, (1 + least) / 2)
    ):
        return []
    middle = (means[longest] + means[shortest]) / 2
    slower = {rank for rank, mean in means.items() if mean >= middle}
    return [_uneven(result, means, slower)]


def _is_in_most_steps(compute: ByRank, longest: int, shortest: int, least: float) -> bool:
    """Whether one computes longer than the other in nearly every step: of those that both have, else of all."""
    common = sorted(compute[longest].keys() & compute[shortest].keys())
    pairs = [(compute[longest][step], compute[shortest][step]) for step in common] or [
        (longer, shorter) for longer in compute[longest].values() for shorter in compute[shortest].values()
    ]
    return sum(longer >= least * shorter for longer, shorter in pairs) >= EVERY_MIN_RATIO * len(pairs)


def _uneven(result: Result, means: Mapping[int, float], slower: AbstractSet[int]) -> Finding:
    others = means.keys() - slower
    long, short = (fmean(means[rank] for rank in ranks) for ranks in (slower, others))
    verb, each = ("computes", "") if len(slower) == 1 else ("compute", " (mean)")
    return UNEVEN_COMPUTE(
        named("rank", sorted(slower)),
        f"{named('Rank', sorted(slower))} {verb} for {duration(long)} of a step{each}, {named('rank', sorted(others))}"
        f" for {duration(short)}{_ratio_words(long, short, ': {} times as long')}{_extremes_words(means)}."
        f" {_uneven_advice(result, slower, others)}",
    )


def _extremes_words(means: Mapping[int, float]) -> str:
    """The extremes, where they are not the whole sentence."""
    if len(means) == 2:
        return ""
    longest, shortest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    told = f"; the longest, rank {longest}, computes {{}} times as long as the shortest, rank {shortest}"
    return _ratio_words(means[longest], means[shortest], told)


def _ratio_words(longer: float, shorter: float, told: str) -> str:
    """`told` with the ratio; nothing where the shorter is 0, of which nothing is a multiple."""
    return told.format(f"{longer / shorter:.2f}") if shorter else ""


def _uneven_advice(result: Result, slower: AbstractSet[int], others: AbstractSet[int]) -> str:
    even = "Divide the work more evenly: stages of a pipeline, shards of tables or experts, lengths of batches."
    pieces = _launched_in_step(result)
    if not (slower | others) <= pieces.keys():
        return even
    more, fewer = (fmean(pieces[rank] for rank in ranks) for ranks in (slower, others))
    count = f"{more:,.0f} pieces of work on the device, against {fewer:,.0f}"
    if more >= MORE_MIN_RATIO * fewer:
        return f"More is launched there: {count} in a step. {even}"
    return (
        f"No more is launched there ({count} in a step), so each piece takes longer: look for larger inputs, a slower"
        " device, and for other processes on the device."
    )


def _launched_in_step(result: Result) -> dict[int, float]:
    """Launched in a step, by rank; empty without a device."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in result.launches:
        found[row.rank].append(row.launched)
    return {rank: fmean(counts) for rank, counts in found.items()}
