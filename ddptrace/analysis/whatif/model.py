"""A recorded run as something that can be played again with other settings; and how much communication slows compute.

If gradients are accumulated, the run has backwards with and without communication to compare. Otherwise the host's
records show how long the training thread was ready to run while no processor was free. The share that other programs
took of this shows in forward, where nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.summary import measured_steps, typical_steps
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.analysis.whatif.fit import WireFit, fit_wire
from ddptrace.analysis.whatif.observed import ISSUED, LAUNCH, NBYTES, NEVER, ObservedRank, ObservedStep, Sends, sends_of
from ddptrace.analysis.whatif.play import MIB, Buckets, Floats, plan_buckets
from ddptrace.analysis.whatif.tables import Contention
from ddptrace.analysis.whatif.wire import DEFAULT_WORKERS
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import Parameter

MOST_SAMPLES: Final = 40
FEWEST_SAMPLES: Final = 3
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(LOCAL_PHASES))
ASSUMED_HIGH: Final = 1.0
"""Assumed if nothing shows the slowdown."""
MOST_LOST: Final = 0.5
"""Share of the time beside communication."""
CREDIBLE_LOST: Final = 0.7
"""A larger loss has other causes than communication."""
LOST_BY_WAITING: Final = {True: 1.3, False: 0.9, None: 1.0}
"""Nanoseconds lost for each ns of waiting for a processor, by whether anything goes to another host. The system's work
on what arrives from another host interrupts the thread, and does not count as waiting. Measured with and without
communication, on three models and four links: 0.6 to 1.9 and 0.8 to 1.1."""
FEWER, MORE = 0.5, 1.5
"""The interval reaches from the first to the second multiple of the likely loss."""
OTHERS_MAX_RATIO: Final = 0.15
"""Share of the processors that other programs took. With more, nobody knows which waits communication caused."""
BESIDE_MIN_RATIO: Final = 0.3
"""Share of backward beside communication; less shows nothing about the slowdown."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded step of all ranks; columns are by rank. Times of compute are as they were, beside communication."""

    step: int
    wall_ns: Floats
    ahead_ns: Floats  # data and forward of one backward
    unsynced_ns: Floats | None  # a backward that only accumulates; None where none was seen
    ready_ns: Floats  # shape (ranks, parameters), from the begin of backward
    ready_beside_ns: Floats  # of that, time in which anything was sent
    compute_ns: Floats  # of the synchronised backward
    compute_beside_ns: Floats
    after_ns: Floats  # the rest of the step
    elsewhere_ns: float  # other collectives of the step, the last rank's wait
    exposed_ns: float
    queued_ns: Floats | None  # no processor was free for the host
    sends: Sends


@dataclass(frozen=True, slots=True)
class Model:
    """`order`: parameters as they become ready. `launch_ns`: host time that sending a bucket takes."""

    parameters: tuple[Parameter, ...]
    caps_nbytes: tuple[int, ...]
    order: tuple[int, ...]
    buckets: Buckets  # as they were
    ranks: tuple[int, ...]
    world_size: int
    backwards: int
    hook: str | None
    launch_ns: float
    samples: tuple[Sample, ...]
    fit: WireFit
    typical_ns: float  # the typical step
    typical_exposed_ns: float  # its exposed communication, all collectives
    crosses_hosts: bool | None = None  # whether anything is sent to another host; None where nothing tells

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def wire_ratio(self) -> float:
        """Bytes on the wire for each byte of gradients: a half with fp16."""
        sent = float(np.median([sample.sends.nbytes.sum() for sample in self.samples]))
        return sent / sum(self.parameters[number].nbytes for bucket in self.buckets for number in bucket)


def model_of(ranks: Sequence[ObservedRank], world_size: int | None = None) -> Model:
    """Model all ranks of a run, in their order. Raises DdptraceError if their steps cannot be replayed."""
    _refuse(ranks, world_size)
    first = ranks[0]
    steps = _common(ranks)
    samples = tuple(_sample(rows) for rows in steps)[-MOST_SAMPLES:]
    last = steps[-1][0]
    sends = [sends_of([row.sent for row in rows]) for rows in _alike(ranks)]
    order = _order([rows[0] for rows in steps])
    return Model(
        first.parameters,
        _caps(first, order, last.buckets),
        order,
        last.buckets,
        tuple(rank.rank for rank in ranks),
        len(ranks),
        last.backwards,
        last.hook,
        float(np.median([np.median(row.sent[:, ISSUED] - row.sent[:, LAUNCH]) for rows in steps for row in rows])),
        samples,
        fit_wire(sends, first.threads or DEFAULT_WORKERS),
        *_typical(ranks),
        _crosses_hosts(ranks),
    )


def _typical(ranks: Sequence[ObservedRank]) -> tuple[float, float]:
    """The typical step and its exposed communication, as `summarize` has them."""
    rows = [step.row for rank in ranks for step in rank.steps]
    exposed = fmean(row.exposed_comm_ns or 0 for row in measured_steps(rows)[0])
    return fmean(row.wall_ns for row in typical_steps(rows)[0]), exposed


def _crosses_hosts(ranks: Sequence[ObservedRank]) -> bool | None:
    told = {rank.crosses_hosts for rank in ranks} - {None}
    return None if not told else True in told


def _refuse(ranks: Sequence[ObservedRank], world_size: int | None) -> None:
    """What no further file or rank can change comes first."""
    is_recorded = all(rank.recorded for rank in ranks)
    if any(rank.on_device for rank in ranks):
        what = "this run trained on a GPU" if is_recorded else "these traces are of a GPU"
        raise DdptraceError(
            f"{what}, and no profiler window shows what the GPU did, so its steps cannot be replayed: record some steps"
            " with --profile"
        )
    if not is_recorded:
        raise DdptraceError(
            "these are files of torch.profiler alone, which do not show when each gradient was ready: record a run of"
            " all ranks with ddptrace.trace()"
        )
    if world_size is not None and len(ranks) < world_size:
        raise DdptraceError(
            f"only {len(ranks)} of {world_size} ranks left records here: bring all rank folders together"
        )
    if not any(rank.steps for rank in ranks):
        raise DdptraceError(
            "no step can be replayed: that needs a run of ddptrace.trace in which DistributedDataParallel or "
            "BucketedDataParallel reduced gradients once a step"
        )
    if not any(row.sent[:, NBYTES].any() for rank in ranks for row in rank.steps):
        raise DdptraceError("the gradients of this run have no bytes, so the cost of sending them is unknown")
    if any(rank.group_size not in (0, len(ranks)) for rank in ranks):
        raise DdptraceError(
            f"gradients are reduced in a group of {ranks[0].group_size} of the run's {len(ranks)} ranks; whatif "
            "predicts only runs in which all ranks reduce them together"
        )
    if any(rank.reducers > 1 for rank in ranks):
        raise DdptraceError(
            f"{max(rank.reducers for rank in ranks)} data-parallel modules send gradients in this run; "
            "whatif predicts only runs with a single one"
        )


def _alike(ranks: Sequence[ObservedRank]) -> Iterator[tuple[ObservedStep, ...]]:
    """Steps that all ranks have, and in which they sent the same; in time order."""
    by_step = [{row.step: row for row in rank.steps} for rank in ranks]
    for step in sorted(set.intersection(*(set(rows) for rows in by_step))):
        rows = tuple(one[step] for one in by_step)
        if len({row.buckets for row in rows}) == 1:
            yield rows


def _common(ranks: Sequence[ObservedRank]) -> list[tuple[ObservedStep, ...]]:
    """Steady ones with the last layout. Raises DdptraceError where they are too few."""
    rows = list(_alike(ranks))
    last = rows[-1][0] if rows else None
    found = [
        one
        for one in rows
        if last is not None
        and all(row.is_steady and row.buckets == last.buckets and row.backwards == last.backwards for row in one)
    ]
    if len(found) < FEWEST_SAMPLES:
        raise DdptraceError(
            f"{len(found)} steps of this run can be replayed and {FEWEST_SAMPLES} are needed: the first one and "
            "those in which the profiler starts or stops do not count; record more steps"
        )
    return found


def _order(rows: Sequence[ObservedStep]) -> tuple[int, ...]:
    """Parameters in the typical order of readiness; those that never were come last."""
    ready = np.array([row.ready_ns for row in rows], float)
    ready[ready == NEVER] = np.inf
    return tuple(np.argsort(np.median(ready, axis=0), kind="stable").tolist())


def _caps(rank: ObservedRank, order: Sequence[int], buckets: Buckets) -> tuple[int, ...]:
    """Those that give the recorded buckets. Where DDP was told no cap, the first bucket's is 1 MiB."""
    cap = rank.cap_nbytes or max(sum(rank.parameters[one].nbytes for one in bucket) for bucket in buckets)
    sent = {one for bucket in buckets for one in bucket}
    with_first = plan_buckets([one for one in order if one in sent], rank.parameters, (MIB, cap))
    return (MIB, cap) if len(with_first) == len(buckets) and set(with_first[0]) == set(buckets[0]) else (cap,)


def _sample(rows: Sequence[ObservedStep]) -> Sample:
    sends = sends_of([row.sent for row in rows])
    ready = np.array([row.ready_ns for row in rows], float)
    ready = np.where(ready == NEVER, 0.0, ready)
    compute = np.array([row.backward_ns for row in rows], float)
    own = np.array([row.own_ns for row in rows], float)
    backwards = rows[0].backwards
    earlier = own[:, BACKWARD] - compute - np.array([row.finish_ns for row in rows])
    waited = min(row.waited_ns for row in rows)
    return Sample(
        rows[0].step,
        np.array([row.wall_ns for row in rows], float),
        (own[:, DATA] + own[:, FORWARD]) / backwards,
        earlier / (backwards - 1) if backwards > 1 else None,
        *_alone(ready, rows, sends),
        *_alone(compute, rows, sends),
        own[:, OPTIMIZER] + own[:, OTHER] + np.array([row.finish_ns for row in rows], float),
        float(waited),
        float(np.mean([row.exposed_ns for row in rows])),
        _queued(rows),
        sends,
    )


def _queued(rows: Sequence[ObservedStep]) -> Floats | None:
    known = [row.queued_ns for row in rows if row.queued_ns is not None]
    return np.array(known, float) if len(known) == len(rows) else None


def _alone(at_ns: Floats, rows: Sequence[ObservedStep], sends: Sends) -> tuple[Floats, Floats]:
    """Instants less the launches until then, and of that the time in which anything was sent; `at_ns` by rank."""
    shifts = np.array([np.median(row.sent[:, 2] - rows[0].sent[:, 2]) for row in rows])
    beside = [_covered(at, sends.busy + shift) for at, shift in zip(at_ns, shifts, strict=True)]
    launched = [_launching(at, row.sent) for at, row in zip(at_ns, rows, strict=True)]
    return at_ns - np.array(launched), np.array(beside)


def _covered(at_ns: Floats, spans: Floats) -> Floats:
    """Length of the spans until each instant."""
    inside = np.minimum(np.asarray(at_ns)[..., None], spans[:, 1]) - spans[:, 0]
    return np.asarray(np.maximum(inside, 0.0).sum(axis=-1))


def _launching(at_ns: Floats, sent: Ints) -> Floats:
    return np.asarray(((sent[:, ISSUED] - sent[:, LAUNCH]) * (sent[:, ISSUED] <= np.asarray(at_ns)[..., None])).sum(-1))


def contention_of(model: Model) -> Contention:
    beside = _column([sample.compute_beside_ns for sample in model.samples])
    compute = _column([sample.compute_ns for sample in model.samples])
    if np.median(beside) < BESIDE_MIN_RATIO * np.median(compute) or not np.median(beside):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "little was computed beside communication")
    beside = np.maximum(beside, 1.0)  # a step of which nothing ran beside communication is one among others
    if all(sample.unsynced_ns is not None for sample in model.samples):
        unsynced = _column([sample.unsynced_ns for sample in model.samples if sample.unsynced_ns is not None])
        low, middle, high = np.quantile((compute - unsynced) / beside, (0.25, 0.5, 0.75)).tolist()
        return _known(middle, low, high, "backwards with and without communication are in the run")
    if any(sample.queued_ns is None for sample in model.samples):
        return Contention(0.0, 0.0, ASSUMED_HIGH, False, "the host does not record it")
    return _by_waiting(model, beside)


def _by_waiting(model: Model, beside: Floats) -> Contention:
    queued = _column([sample.queued_ns for sample in model.samples if sample.queued_ns is not None])
    forward = _column([sample.ahead_ns for sample in model.samples])
    own = _column([sample.ahead_ns * model.backwards + sample.compute_ns + sample.after_ns for sample in model.samples])
    others = float(1 - np.quantile(forward, 0.1) / np.median(forward))
    times = LOST_BY_WAITING[model.crosses_hosts]
    likely = times * float(np.median(queued / beside))
    if others > OTHERS_MAX_RATIO or likely > CREDIBLE_LOST:
        why = "other programs took the processors too"
        return Contention(0.0, 0.0, _slower(MORE * likely), False, why)
    least = times * float(np.median((queued - others * own) / beside))
    why = "from how long the training thread waited for a processor"
    return _known(likely, FEWER * least, MORE * likely, why)


def _known(likely: float, low: float, high: float, why: str) -> Contention:
    """Of the time beside communication, what was lost."""
    return Contention(_slower(likely), _slower(low), _slower(high), True, why)


def _slower(lost: float) -> float:
    lost = min(max(lost, 0.0), MOST_LOST)
    return lost / (1 - lost)


def _column(rows: list[Floats]) -> Floats:
    """By step, the mean over ranks."""
    return np.asarray(np.array(rows).mean(axis=1))
