"""What a reducer sent of its gradients, beside what it should: all of them, once, in each backward that synchronises.

step       ├─ backward ── backward ── backward ── update ─┤     accumulation, done right: no_sync() around the first two
sent            -            -         every bucket             3 backwards, 1 of them synchronised, and it is the last
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from ddptrace.analysis.buckets.layouts import in_buckets, in_force
from ddptrace.analysis.buckets.occurrences import backward_of
from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.traffic import GradientTrafficRow
from ddptrace.load.tables import Reducer
from ddptrace.schema import Origin, Phase

Key = tuple[int, int | None]  # reducer, ordinal of the backward in the rank; None where no backward was seen


@dataclass(frozen=True, slots=True)
class _Backward:
    """One backward of the rank, and the position of the step that it began in."""

    ordinal: int
    begin_at_ns: int
    step: int


def gradient_traffic_rows(view: RankView) -> list[GradientTrafficRow]:
    """By reducer, then step. Of a reducer that nothing described, or whose backwards were not seen, there is no row."""
    sent, backwards = _sent(view), _backwards(view)
    took_part = {(ready.reducer, ready.backward) for ready in view.rank.ready} | set(sent)
    updates = sorted(mark.begin_at_ns for mark in view.rank.phases if mark.phase is Phase.OPTIMIZER)
    rows: list[GradientTrafficRow] = []
    for reducer in view.rank.reducers:
        if reducer.parameters and (reducer.reducer, None) not in sent:
            mine = [backward for backward in backwards if (reducer.reducer, backward.ordinal) in took_part]
            rows += _rows(view, reducer, mine, sent, updates)
    return rows


def _sent(view: RankView) -> dict[Key, list[Communication]]:
    """The communications that carried gradients, by reducer and backward. One that belongs to no backward and to no
    whole step is left out: it is of a backward that the rank died in, or that lies outside of what was kept."""
    steps = view.steps.at(np.array([comm.launch_at_ns for comm in view.comms], np.int64)).tolist()
    owners: dict[int, Key] = {
        comm.seq: (occurrence.reducer, occurrence.backward) for occurrence in view.found for comm in occurrence.comms
    }
    sent: defaultdict[Key, list[Communication]] = defaultdict(list)
    for comm, backward, step in zip(view.comms, backward_of(view.rank, view.comms), steps, strict=True):
        key = owners.get(comm.seq)
        if key is None and comm.hook is not None:
            key = comm.hook.reducer, comm.hook.backward
        if key is None and comm.call is not None and comm.call.reducer is not None:
            key = (comm.call.reducer, backward) if comm.call.origin == Origin.GRADIENTS.word else None
        if key is not None and (key[1] is not None or step >= 0):
            sent[key].append(comm)
        elif key is None and _of_unseen_hook(comm):
            for reducer in _asked(view.rank.reducers, backward):
                sent[reducer].append(comm)
    return dict(sent)


def _of_unseen_hook(comm: Communication) -> bool:
    """Whether it is of a hook that the program registered before the trace, so that nothing recorded its buckets."""
    return comm.call is not None and comm.hook is None and comm.call.origin == Origin.HOOK.word


def _asked(reducers: Sequence[Reducer], backward: int | None) -> Iterator[Key]:
    """Yield the reducer that such a hook belongs to; where there are several, all of them, with no backward."""
    for reducer in reducers:
        yield reducer.reducer, backward if len(reducers) == 1 else None


def _backwards(view: RankView) -> list[_Backward]:
    """Those that began inside a step, in time order."""
    marks = [(mark.backward, mark.begin_at_ns) for mark in view.rank.phases if mark.phase is Phase.BACKWARD]
    at = view.steps.at(np.array([begin for _, begin in marks], np.int64)).tolist()
    found = [
        _Backward(ordinal, begin, step)
        for (ordinal, begin), step in zip(marks, at, strict=True)
        if step >= 0 and ordinal is not None
    ]
    return sorted(found, key=lambda one: one.begin_at_ns)


def _rows(
    view: RankView,
    reducer: Reducer,
    backwards: Sequence[_Backward],
    sent: Mapping[Key, Sequence[Communication]],
    updates: Sequence[int],
) -> Iterator[GradientTrafficRow]:
    by_step: defaultdict[int, list[_Backward]] = defaultdict(list)
    for backward in backwards:
        by_step[backward.step].append(backward)
    for position, mine in by_step.items():
        carried = [sent.get((reducer.reducer, one.ordinal), ()) for one in mine]
        comms = [comm for part in carried for comm in part]
        step, buckets = view.rank.steps[position], in_buckets(reducer, in_force(reducer, mine[-1].ordinal))
        mine_updates = updates[bisect_left(updates, step.begin_at_ns) : bisect_left(updates, step.end_at_ns)]
        yield GradientTrafficRow(
            view.rank.rank,
            step.ordinal,
            reducer.reducer,
            f"{reducer.kind} of {reducer.module}",
            gradient_nbytes=sum(parameter.nbytes for parameter in buckets),
            backwards=len(mine),
            synchronised=sum(map(bool, carried)),
            last_synchronised=bool(carried[-1]),
            one_update=bool(mine_updates) and mine_updates[0] >= mine[-1].begin_at_ns,
            nbytes=_nbytes(comms),
            dtypes=_dtypes(comms),
            hook=next((comm.hook.name for comm in comms if comm.hook is not None), None),
            parameter_dtypes=tuple(sorted({parameter.dtype for parameter in buckets})),
        )


def _nbytes(comms: Sequence[Communication]) -> int | None:
    calls = [comm.call for comm in comms]
    return None if None in calls else sum(call.nbytes_in for call in calls if call is not None)


def _dtypes(comms: Sequence[Communication]) -> tuple[str, ...]:
    return tuple(sorted({comm.call.dtype for comm in comms if comm.call is not None}))


# In short, for a reader -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GradientDigest:
    """One reducer: means over the rank-steps in which it got gradients."""

    reducer: int  # number of the reducer
    name: str  # as in "DistributedDataParallel of Net"
    rank_steps: int  # (rank, step) pairs that it got gradients in
    gradient_nbytes: int  # of all parameters in its buckets
    backwards: float  # backwards that gave it gradients
    synchronised: float  # of these, backwards that sent gradients
    expected_nbytes: int  # its gradients, once in each synchronised backward
    nbytes: int | None  # of tensors handed to its collectives; None where a hook went without
    sent_ratio: float | None  # nbytes / expected; None where nothing was to be sent
    dtypes: tuple[str, ...]  # of the tensors that were sent
    hooks: tuple[str, ...]  # the user's communication hooks
    parameter_dtypes: tuple[str, ...]  # of the parameters in its buckets


def gradients(rows: Iterable[GradientTrafficRow]) -> tuple[GradientDigest, ...]:
    """By reducer."""
    by_reducer: defaultdict[tuple[int, str], list[GradientTrafficRow]] = defaultdict(list)
    for row in rows:
        by_reducer[row.reducer, row.name].append(row)
    return tuple(_digest(mine) for _, mine in sorted(by_reducer.items()))


def _digest(rows: Sequence[GradientTrafficRow]) -> GradientDigest:
    first = rows[0]
    expected = sum(row.gradient_nbytes * row.synchronised for row in rows)
    known = [row.nbytes for row in rows if row.nbytes is not None]
    seen = sum(known) if len(known) == len(rows) else None
    return GradientDigest(
        first.reducer,
        first.name,
        len(rows),
        round(mean(row.gradient_nbytes for row in rows)),
        backwards=mean(row.backwards for row in rows),
        synchronised=mean(row.synchronised for row in rows),
        expected_nbytes=round(expected / len(rows)),
        nbytes=None if seen is None else round(seen / len(rows)),
        sent_ratio=seen / expected if seen is not None and expected else None,
        dtypes=tuple(sorted({dtype for row in rows for dtype in row.dtypes})),
        hooks=tuple(sorted({row.hook for row in rows if row.hook is not None})),
        parameter_dtypes=tuple(sorted({dtype for row in rows for dtype in row.parameter_dtypes})),
    )
