"""Where a rank is, in words, as far as the last of its records tell, and why these may be none of this job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddptrace.analysis.diagnosis.tables import RankPlace, Verdict
from ddptrace.load.diagnosis.tables import BEAT_NS, BEATS, JobState, LastCall, RankState
from ddptrace.ops import family_of
from ddptrace.schema import Phase, line_words
from ddptrace.units import named, size

LIKELY: Final = {
    Phase.DATA: "its data loader does not return",
    Phase.FORWARD: "its forward does not return",
    Phase.BACKWARD: "its backward does not return",
    Phase.OPTIMIZER: "its optimizer does not return",
}
AFTER: Final = {
    "data": "after it got its data",
    "forward": "after its forward",
    "backward": "after its backward",
    "optimizer": "after its update",
    "wait": "after a wait for a collective",
    "end of a step": "after the end of a step",
}
"""By `RankState.did_last`, where a rank in no call is that left no other trace."""
OF_A_WORKER: Final = ("selectors.py:", "multiprocessing/")
"""Lines that a loader's wait for its worker processes ends in."""
WORKER_LIKELY: Final = "it waits for a worker process of its data loader, whose own line is not known"
OWN_LIKELY: Final = (
    "the program does not return from that line: it is not waiting for data, nor in a forward, backward or update"
)
HELD_LIKELY: Final = "C code holds its interpreter and lets no other thread run, or its machine hangs"
STOPPED_LIKELY: Final = "a signal or a debugger stopped it: kill -CONT lets it go on"
NO_FOLDER: Final = "it left no records here: it never came to ddptrace.trace, or writes to another disk"
ENDED_LIKELY: Final = (
    "it left the training before the others, as with uneven inputs: torch's Join and DDP's join() are made for that"
)


def doubt_verdicts(job: JobState) -> Iterator[Verdict]:
    """Yield why what is said of ranks may be none of this job."""
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, doubts in job.doubts.items():
        for finding in doubts:
            alike[finding.message].append(rank)
    yield from (Verdict("doubt", f"{named('rank', ranks)}: {message}") for message, ranks in alike.items())


def place_of(state: RankState, now_at_ns: int) -> RankPlace:
    pulse = state.pulse
    site = _line(pulse.site) if pulse is not None else None
    pending = state.pending
    if pending is not None and site in (None, pending.site):
        site, through = pending.site, pending.through
    else:
        through = None
    phase = state.phase.name.lower() if state.phase is not None else None
    return RankPlace(
        state.rank,
        state.host,
        state.pid,
        status_of(state, now_at_ns),
        state.step,
        phase,
        _doing(state),
        site,
        max(0, now_at_ns - state.last_at_ns),
        state.failure,
        through,
        _innermost(state),
    )


def status_of(state: RankState, now_at_ns: int) -> str:
    if state.closed:
        return "ended" if state.failure is None else "failed"
    if state.alive is False:
        return "died"
    if state.stopped:
        return "stopped"
    if state.alive and now_at_ns - state.beat_at_ns > BEATS * BEAT_NS:
        return "held"
    return "runs" if state.alive else "unknown"


def place_words(place: RankPlace) -> str:
    """As in `step 5, backward, in all_reduce #7 (16 B) of group 0, at train.py:17 in main`, or of a rank that is in no
    collective `step 5, data: data.py:12 in __getitem__, there in ssl.py:3 in read`."""
    step = None if place.step is None else f"step {place.step}"
    said = ", ".join(filter(None, (step, place.phase, place.doing)))
    joint = ", at " if place.doing else ": "
    line = line_words(place.site, place.through)
    at = "" if line is None else f"{joint}{line}" if said else f"at {line}"
    return said + at + ("" if place.innermost is None else f", there in {place.innermost}")


def likely(state: RankState, now_at_ns: int) -> str:
    """Why it does not come; empty where nothing tells."""
    status = status_of(state, now_at_ns)
    if status in ("stopped", "held"):
        return STOPPED_LIKELY if status == "stopped" else HELD_LIKELY
    if status == "ended":
        return ENDED_LIKELY
    if state.pending is not None or (state.phase is None and state.pulse is None):
        return ""
    if _waits_for_a_worker(state):
        return WORKER_LIKELY
    return OWN_LIKELY if state.phase is None else LIKELY[state.phase]


def _waits_for_a_worker(state: RankState) -> bool:
    """A dataset that reads in the rank itself may wait for any process."""
    site = state.pulse.site if state.pulse is not None else ""
    innermost = _innermost(state) or ""
    return state.phase is Phase.DATA and innermost.startswith(OF_A_WORKER) and not site.endswith("__getitem__")


def where_words(job: JobState, ranks: Iterable[int]) -> tuple[str, ...]:
    """Of each, also of one that is not here."""
    states = {one.rank: one for one in job.ranks}
    return tuple(place_words(place_of(states[rank], job.now_at_ns)) if rank in states else NO_FOLDER for rank in ranks)


def likely_words(job: JobState, ranks: Sequence[int]) -> str:
    """Where it is the same for all of them."""
    states = {one.rank: one for one in job.ranks}
    told = {likely(states[rank], job.now_at_ns) if rank in states else "" for rank in ranks}
    return told.pop() if len(told) == 1 else ""


def call_words(call: LastCall, group: str) -> str:
    """As in `all_reduce #7 (16 B, bucket of DistributedDataParallel) of group 0`, `recv #0 (16 B) from rank 1`."""
    of = "" if call.bucket_of is None else f"bucket of {call.bucket_of}"
    about = ", ".join(filter(None, (size(call.nbytes) if call.nbytes else "", of)))
    between = f"{'to' if call.op.startswith('send') else 'from'} rank {call.peer} in "
    where = (between if family_of(call.op).is_message else "of ") + group_words(group)
    return f"{op_words(call.op)} #{call.turn}{f' ({about})' if about else ''} {where}"


def op_words(op: str) -> str:
    return op.rstrip("_") or op


def group_words(group: str) -> str:
    return f"group {group}" if group else "the unnamed group"


def at_words(site: str | None) -> str:
    return "" if site is None else f" at {site}"


def seconds(ns: int) -> str:
    """As in `0.4 s`, `31 s`, `12 min`, `5 h`, `3 days`."""
    if ns >= 2 * 3600e9:
        return f"{ns / 3600e9:.0f} h" if ns < 2 * 86400e9 else f"{ns / 86400e9:.0f} days"
    return f"{ns / 60e9:.0f} min" if ns >= 600e9 else f"{ns / 1e9:.0f} s" if ns >= 9.95e9 else f"{ns / 1e9:.1f} s"


def _innermost(state: RankState) -> str | None:
    pulse = state.pulse
    if pulse is None or state.pending is not None or pulse.frame == pulse.site:
        return None
    return _line(pulse.frame)


def _line(site: str) -> str | None:
    """None of what has no line, as `<string>:0 in <module>`: code that Python has not begun yet."""
    return None if not site or site.partition(" in ")[0].endswith(":0") else site


def _doing(state: RankState) -> str:
    if state.pending is not None:
        return f"in {call_words(state.pending, state.pending_group)}"
    return "" if state.pulse is not None else AFTER.get(state.did_last, "")
