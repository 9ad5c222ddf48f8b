"""What one rank's records tell of its steps, as far as a step can be played again from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.buckets.occurrences import Occurrence
from ddptrace.analysis.intervals import Ints, merged
from ddptrace.analysis.rank_view import RankView, view_of
from ddptrace.analysis.steps.breakdown import step_rows
from ddptrace.analysis.steps.phases import main_marks
from ddptrace.analysis.steps.variation import waited_in_phases
from ddptrace.analysis.summary import steady_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.whatif.play import Floats
from ddptrace.load.tables import Parameter, PhaseMark, RankRun, Ready, Reducer
from ddptrace.schema import Phase

NEVER = -1
"""Instead of an instant, of a gradient that this backward did not bring."""
LAUNCH, ISSUED, DONE, NBYTES = range(4)
"""Columns of `ObservedStep.sent`."""


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step with one synchronised backward, which may follow others that only accumulate. Instants in ns from the
    begin of that backward; own times are without waits."""

    row: StepRow  # of the breakdown
    is_steady: bool  # neither the first nor held up by ddptrace itself
    backwards: int
    own_ns: tuple[int, ...]  # by `LOCAL_PHASES`
    waited_ns: int  # of the step, on collectives, but not for the buckets
    backward_ns: int  # the synchronised one, until the host only waits
    finish_ns: int  # from the last bucket's end to the end of backward: gradients are put back
    ready_ns: Ints  # by parameter, NEVER for none
    sent: Ints  # by bucket in launch order: launch, issued, done, bytes on the wire
    buckets: tuple[tuple[int, ...], ...]  # parameters
    hook: str | None
    queued_ns: int | None = None  # the training thread could have run and no processor was free

    @property
    def step(self) -> int:
        return self.row.step

    @property
    def wall_ns(self) -> int:
        return self.row.wall_ns

    @property
    def exposed_ns(self) -> int:
        """All collectives'."""
        return self.row.exposed_comm_ns or 0


@dataclass(frozen=True, slots=True)
class ObservedRank:
    """One rank of a reducer. `threads`: how many of its group's collectives run at once; None where nothing tells."""

    rank: int
    on_device: bool
    group_size: int  # 0 where nothing tells
    threads: int | None
    parameters: tuple[Parameter, ...]
    cap_nbytes: int | None
    reducers: int
    steps: tuple[ObservedStep, ...]
    crosses_hosts: bool | None = None  # of its connections; None where nobody looked
    recorded: bool = True  # by ddptrace; False: read out of profiler files


def observe(rank: RankRun, number: int | None = None) -> ObservedRank:
    """Understand one rank, and observe it as `observe_view` does."""
    view = view_of(rank)
    return observe_view(view, step_rows(view), number)


def observe_view(view: RankView, rows: Sequence[StepRow], number: int | None = None) -> ObservedRank:
    """Steps in time order; none where nothing was reduced, or nobody recorded when gradients were ready. `rows`: the
    rank's steps. `number`: of the reducer whose steps are told; without, the one that sends most."""
    rank = view.rank
    reducer = _main_reducer(view) if number is None else next(r for r in rank.reducers if r.reducer == number)
    groups = {group.name: group for group in rank.groups}
    group = groups.get(reducer.group) if reducer else None
    return ObservedRank(
        rank.rank,
        view.is_on_device,
        len(group.ranks) if group else 0,
        group.threads if group else None,
        reducer.parameters if reducer else (),
        reducer.bucket_cap_nbytes if reducer else None,
        len({occurrence.reducer for occurrence in view.found}),
        tuple(_steps(view, rows, reducer)) if reducer else (),
        any(link.own != link.peer for link in rank.load.links) if rank.load.links else None,
        rank.recorded,
    )


def _main_reducer(view: RankView) -> Reducer | None:
    """The one that sends most; the others' times count as they are."""
    sent: dict[int, int] = defaultdict(int)
    for occurrence in view.found:
        sent[occurrence.reducer] += occurrence.nbytes
    return max(view.rank.reducers, key=lambda one: sent[one.reducer], default=None) if sent else None


def _steps(view: RankView, rows: Sequence[StepRow], reducer: Reducer) -> Iterator[ObservedStep]:
    steady = {row.step for row in steady_steps(rows)}
    ready = {one.backward: one for one in view.rank.ready if one.reducer == reducer.reducer}
    backwards, found, queued = _backwards(view), _found(view, reducer), _queued(view)
    for position, (row, waits) in enumerate(zip(rows, waited_in_phases(view), strict=True)):
        marks = backwards[position]
        synced = [mark for mark in marks if mark.backward in found and mark.backward in ready]
        if len(synced) != 1 or synced[0] is not marks[-1]:
            continue
        mark = synced[0]
        sent = found[mark.backward or 0]
        if all(occurrence.parameters and occurrence.comms[-1].end_at_ns is not None for occurrence in sent):
            at = _ready_at(ready[mark.backward or 0], mark, len(reducer.parameters))
            own = tuple(getattr(row, f"{name}_ns") - wait for name, wait in zip(LOCAL_PHASES, waits, strict=True))
            found_step = _step(row, row.step in steady, len(marks), own, sum(waits), mark, at, sent, reducer)
            yield replace(found_step, queued_ns=queued.get(position))


def _ready_at(ready: Ready, mark: PhaseMark, count: int) -> Ints:
    """By parameter. A damaged record may name some that are none."""
    at = np.full(count, NEVER, np.int64)
    is_one = (ready.parameters >= 0) & (ready.parameters < count)
    at[ready.parameters[is_one]] = ready.at_ns[is_one] - mark.begin_at_ns
    return at


def _step(
    row: StepRow,
    is_steady: bool,
    backwards: int,
    own_ns: tuple[int, ...],
    waited_ns: int,
    mark: PhaseMark,
    ready_ns: Ints,
    found: Sequence[Occurrence],
    reducer: Reducer,
) -> ObservedStep:
    sent = np.array([_sent(occurrence) for occurrence in found], np.int64)
    sent[:, :NBYTES] -= mark.begin_at_ns
    length = mark.end_at_ns - mark.begin_at_ns
    computed = min(max(int(ready_ns.max(initial=0)), int(sent[:, ISSUED].max())), length)
    over = min(max(computed, int(sent[:, DONE].max())), length)
    numbers = {parameter.name: number for number, parameter in enumerate(reducer.parameters)}
    return ObservedStep(
        row,
        is_steady,
        backwards,
        own_ns,
        max(waited_ns - (over - computed), 0),
        computed,
        length - over,
        ready_ns,
        sent,
        tuple(tuple(numbers[name] for name in occurrence.parameters) for occurrence in found),
        found[0].hook.name if found[0].hook else None,
    )


def _sent(occurrence: Occurrence) -> tuple[int, int, int, int]:
    first, last = occurrence.comms[0], occurrence.comms[-1]
    nbytes = sum(max(comm.call.nbytes_in, comm.call.nbytes_out) for comm in occurrence.comms if comm.call is not None)
    return first.launch_at_ns, first.issued_at_ns, last.end_at_ns or 0, nbytes or occurrence.nbytes


def _queued(view: RankView) -> dict[int, int]:
    """By step's position, where the host tells."""
    marks = view.rank.load.marks
    at = view.steps.at(np.array([(mark.begin_at_ns + mark.end_at_ns) // 2 for mark in marks], np.int64)).tolist()
    return {position: mark.queued_ns for position, mark in zip(at, marks, strict=True)}


def _backwards(view: RankView) -> dict[int, list[PhaseMark]]:
    """By step's position, in time order."""
    marks = [mark for mark in main_marks(view.rank) if mark.phase is Phase.BACKWARD and mark.backward is not None]
    found: dict[int, list[PhaseMark]] = defaultdict(list)
    at = view.steps.at(np.array([mark.begin_at_ns for mark in marks], np.int64)).tolist()
    for position, mark in zip(at, marks, strict=True):
        found[position].append(mark)
    return found


def _found(view: RankView, reducer: Reducer) -> dict[int, list[Occurrence]]:
    """By backward, in launch order."""
    found: dict[int, list[Occurrence]] = defaultdict(list)
    for occurrence in sorted(view.found, key=attrgetter("launch_at_ns")):
        if occurrence.reducer == reducer.reducer:
            found[occurrence.backward].append(occurrence)
    return found


# What one backward sent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sends:
    """One backward's buckets in launch order: when the last rank came, when they were over, bytes. One rank's clock."""

    arrived_ns: Floats
    done_ns: Floats
    nbytes: Ints

    @property
    def busy(self) -> Floats:
        """Union of what was sent, shape (n, 2)."""
        return np.array(merged(zip(self.arrived_ns.tolist(), self.done_ns.tolist(), strict=True)))

    @property
    def were_alone(self) -> NDArray[np.bool_]:
        """Which buckets had the wire to themselves all the while."""
        before = np.concatenate([[-np.inf], np.maximum.accumulate(self.done_ns)[:-1]])
        after = np.concatenate([np.minimum.accumulate(self.arrived_ns[::-1])[::-1][1:], [np.inf]])
        return (self.arrived_ns >= before) & (self.done_ns <= after)


def sends_of(sent: Sequence[Ints]) -> Sends:
    """`sent`: of each rank, as in `ObservedStep`; on the clock of the first."""
    taken = np.min([one[:, DONE] - one[:, LAUNCH] for one in sent], axis=0)
    done = sent[0][:, DONE].astype(float)
    return Sends(np.maximum.accumulate(done - taken), done, sent[0][:, NBYTES])
