"""What the numbers mean, in sentences: what was seen, what they rest on, what to look at next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ddptrace.analysis.advice import bucket_findings
from ddptrace.analysis.collectives import HOOK_OP
from ddptrace.analysis.summary import PAUSED_MAX_RATIO, summarize
from ddptrace.analysis.tables import Result
from ddptrace.analysis.view import View
from ddptrace.load.tables import Finding, Run
from ddptrace.schema import Evidence

NAMED = 5
"""So many steps or ranks are named one by one; of more, the rest are counted."""

UNKNOWN_MAX_RATIO = 0.05
"""So many collectives may be unknown before that is worth a warning: DDP itself sends a few small ones at its start."""


def findings(run: Run, views: Sequence[View], result: Result) -> list[Finding]:
    """The run's own findings first, then what analysis adds, from what spoils the numbers to what they say."""
    return [
        *run.findings,
        *_deaths(views),
        *_communication(run, views),
        *_steps(views),
        *_evidence(views, result),
        *_unknown(views),
        *_unmatched(views),
        *_pauses(result),
        *_layouts(views),
        *bucket_findings(summarize(result), views),
    ]


def _deaths(views: Sequence[View]) -> Iterator[Finding]:
    for view in views:
        if view.rank.clean:
            continue
        name = f"rank {view.rank.rank}"
        steps = view.rank.steps
        last = f"its last whole step is {steps[-1].ordinal}" if steps else "no step of it was finished"
        yield Finding("process-died", "error", name, (
            f"{name} (pid {view.rank.pid} on {view.rank.host}) did not end its trace: it died or still runs; {last},"
            " and what it did after that is incomplete."
        ))  # fmt: skip


def _communication(run: Run, views: Sequence[View]) -> Iterator[Finding]:
    if not any(view.comms for view in views):
        yield Finding("no-communication", "warning", "run", (
            "No collective was recorded on any rank, so there is no communication to judge: trace the training loop"
            " after torch.distributed.init_process_group()."
        ))  # fmt: skip
    world = run.world_size if run.world_size is not None else len(views)
    if world == 1:
        yield Finding("single-rank", "info", "run", (
            "Only one rank took part, so nothing waits for another: start several with torchrun to see communication."
        ))  # fmt: skip


def _steps(views: Sequence[View]) -> Iterator[Finding]:
    without = [view.rank.rank for view in views if not view.rank.steps]
    if without:
        yield Finding("no-steps", "warning", _named("rank", without), (
            f"No step was found on {_named('rank', without)}, so its time cannot be broken down: call t.step() at the"
            " end of each iteration."
        ))  # fmt: skip
    by_backward = [view.rank.rank for view in views if any(s.ended_by.name == "BACKWARD" for s in view.rank.steps)]
    if by_backward:
        yield Finding("steps-by-backward", "info", _named("rank", by_backward), (
            f"No optimizer was seen on {_named('rank', by_backward)}, so each backward counts as one step: call"
            " t.step() where yours end."
        ))  # fmt: skip


def _evidence(views: Sequence[View], result: Result) -> Iterator[Finding]:
    """What the numbers rest on, where it is less than it could be."""
    comms = [comm for view in views for comm in view.comms]
    if result.steps and comms and not any(row.profiled for row in result.steps):
        yield Finding("coarse-compute", "info", "run", (
            "No step was profiled, so compute is taken from the phases, whatever ran inside them: trace with"
            " profile=... to measure it."
        ))  # fmt: skip
    guessed = sum(comm.evidence in (Evidence.CALLBACK, Evidence.HOST) for comm in comms)
    if guessed:
        yield Finding("approximate-overlap", "info", "run", (
            f"{guessed} of {len(comms)} collectives had only their end measured and their begin inferred, so their"
            " overlap is approximate: trace with profile=... to see when they ran."
        ))  # fmt: skip


def _unknown(views: Sequence[View]) -> Iterator[Finding]:
    comms = [comm for view in views for comm in view.comms]
    ops = Counter(comm.call.op if comm.call else HOOK_OP for comm in comms if comm.evidence is None)
    if ops:
        count, (op, _) = ops.total(), ops.most_common(1)[0]
        severity = "warning" if count > UNKNOWN_MAX_RATIO * len(comms) else "info"
        yield Finding("unknown-exec", severity, "run", (
            f"{count} of {len(comms)} collectives (most of them {op}) left nothing that tells when they ran: they are"
            " missing from communication and overlap; trace with profile=... to see them."
        ))  # fmt: skip


def _unmatched(views: Sequence[View]) -> Iterator[Finding]:
    lost = [(view.rank.rank, len(view.unmatched)) for view in views if view.unmatched]
    if lost:
        yield Finding("bucket-layout-unknown", "warning", _named("rank", [rank for rank, _ in lost]), (
            f"In {sum(count for _, count in lost)} backward passes the reducer's communication fits no known bucket"
            " layout, so it counts as collectives, without names of parameters."
        ))  # fmt: skip


def _pauses(result: Result) -> Iterator[Finding]:
    held = [row for row in result.steps if row.paused_ns > PAUSED_MAX_RATIO * row.wall_ns]
    if held:
        steps = sorted({row.step for row in held})
        longest = max(row.paused_ns for row in held)
        yield Finding("paused-steps", "info", _named("step", steps), (
            f"ddptrace itself held the training thread in {_named('step', steps)}, for up to {_ms(longest)} on one rank"
            " (starting, stopping or saving the profiler): do not judge the program by these steps."
        ))  # fmt: skip


def _layouts(views: Sequence[View]) -> Iterator[Finding]:
    told = set()
    for reducer in (reducer for view in views for reducer in view.rank.reducers):
        if len(reducer.layouts) > 1 and reducer.reducer not in told:
            told.add(reducer.reducer)
            sizes = " then ".join(str(len(layout.buckets)) for layout in reducer.layouts)
            yield Finding("layout-rebuilt", "info", f"reducer {reducer.reducer}", (
                f"{reducer.kind} of {reducer.module} rebuilt its buckets in the order in which gradients become ready"
                f" ({sizes} buckets, the last from backward {reducer.layouts[-1].from_backward} on): compare buckets of"
                " one layout only."
            ))  # fmt: skip


def _named(what: str, numbers: Iterable[int]) -> str:
    """As in "step 3", "steps 3, 4 and 5", "ranks 0, 1, 2, 3, 4 and 12 more"."""
    names = [str(number) for number in numbers]
    if len(names) == 1:
        return f"{what} {names[0]}"
    shown = names[:NAMED] if len(names) > NAMED + 1 else names[:-1]
    rest = f"{len(names) - NAMED} more" if len(names) > NAMED + 1 else names[-1]
    return f"{what}s {', '.join(shown)} and {rest}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
