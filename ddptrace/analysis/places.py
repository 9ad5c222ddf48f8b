"""Where a rank is, in words, as far as the last of its records tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ddptrace.analysis.diagnosis_tables import RankPlace
from ddptrace.analysis.wording import amount
from ddptrace.load.tables import BEAT_NS, BEATS, JobState, LastCall, RankState
from ddptrace.schema import Phase

MESSAGES: Final = ("send", "recv")
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
HELD_LIKELY: Final = "C code holds its interpreter and lets no other thread run, or its machine hangs"
STOPPED_LIKELY: Final = "a signal or a debugger stopped it: kill -CONT lets it go on"
NO_FOLDER: Final = "it left no records here: it never came to ddptrace.trace, or writes to another disk"
ENDED_LIKELY: Final = (
    "it left the training before the others, as with uneven inputs: torch's Join and DDP's join() are made for that"
)


def place_of(state: RankState, now_at_ns: int) -> RankPlace:
    pulse = state.pulse
    site = pulse.site if pulse is not None and pulse.site else state.pending.site if state.pending is not None else None
    phase = state.phase.name.lower() if state.phase is not None else None
    return RankPlace(
        state.rank, state.host, state.pid, status_of(state, now_at_ns), state.step, phase, _doing(state), site,
        max(0, now_at_ns - state.last_at_ns), state.failure,
    )  # fmt: skip


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
    """As in `step 5, backward, in all_reduce #7 (16 B) of group 0, at train.py:17 in main`."""
    step = None if place.step is None else f"step {place.step}"
    at = None if place.site is None else f"at {place.site}"
    return ", ".join(filter(None, (step, place.phase, place.doing, at)))


def likely(state: RankState, now_at_ns: int) -> str:
    """Why it does not come; empty where nothing tells."""
    status = status_of(state, now_at_ns)
    if status in ("stopped", "held"):
        return STOPPED_LIKELY if status == "stopped" else HELD_LIKELY
    if status == "ended":
        return ENDED_LIKELY
    return LIKELY[state.phase] if state.phase is not None and state.pending is None else ""


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
    about = ", ".join(filter(None, (amount(call.nbytes) if call.nbytes else "", of)))
    between = f"{'to' if call.op.startswith('send') else 'from'} rank {call.peer} in "
    where = (between if call.op.startswith(MESSAGES) else "of ") + group_words(group)
    return f"{op_words(call.op)} #{call.turn}{f' ({about})' if about else ''} {where}"


def op_words(op: str) -> str:
    return op.rstrip("_") or op


def group_words(group: str) -> str:
    return f"group {group}" if group else "the unnamed group"


def at_words(site: str | None) -> str:
    return "" if site is None else f" at {site}"


def seconds(ns: int) -> str:
    """As in `0.4 s`, `31 s`, `12 min`."""
    return f"{ns / 60e9:.0f} min" if ns >= 600e9 else f"{ns / 1e9:.0f} s" if ns >= 9.95e9 else f"{ns / 1e9:.1f} s"


def _doing(state: RankState) -> str:
    if state.pending is not None:
        return f"in {call_words(state.pending, state.pending_group)}"
    return "" if state.pulse is not None else AFTER.get(state.did_last, "")
