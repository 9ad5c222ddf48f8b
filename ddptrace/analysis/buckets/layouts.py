"""A reducer's bucket layouts: which calls fit them, and when their gradients were ready.

`ReducerFacts` is the short form of a reducer that findings and advice read without the rank's records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import HookCall, Layout, Parameter, RankRun, Ready, Reducer
from ddptrace.schema import Origin, Phase

_NEVER = np.iinfo(np.int64)

DROPS_LAYERS = "BucketedDataParallel"
"""The kind of reducer that leaves out a bucket none of whose parameters has a gradient; stock DDP sends every one."""

Span = tuple[int | None, int | None]
Calls = dict[int, Communication]  # by bucket index, in launch order
Sized = tuple[str, int]
"""Name and bytes."""


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """One layout of one reducer. The tuples are by bucket index, in launch order."""

    layout: int
    from_backward: int
    names: tuple[tuple[str, ...], ...]
    numels: tuple[int, ...]
    nbytes: tuple[int, ...]
    members: Ints  # the parameters of all buckets, one bucket after another
    offsets: Ints  # where each bucket begins in `members`
    parameter_count: int

    def holds(self, index: int, comm: Communication) -> bool:
        """Whether a call has the bucket's bytes, or those of its half-precision copy (DDP's built-in fp16 hook)."""
        if comm.call is None:
            return False
        is_half = "float16" in comm.call.dtype and comm.call.nbytes_in == 2 * self.numels[index]
        return comm.call.nbytes_in == self.nbytes[index] or is_half

    def match(self, comms: Sequence[Communication]) -> Calls | None:
        """One call per bucket, in order, past calls that do not fit. None unless every bucket has one."""
        found: Calls = {}
        for comm in comms:
            if len(found) < len(self.nbytes) and self.holds(len(found), comm):
                found[len(found)] = comm
        return found if found and len(found) == len(self.nbytes) else None

    def match_used(self, comms: Sequence[Communication], used: Ints) -> Calls | None:
        """One call per bucket that holds a parameter in `used`, in order. None unless each of them has its call, of its
        very size, and no call is left over: there is then no other way to read them."""
        is_used = np.zeros(self.parameter_count, np.bool_)
        is_used[self._known(used)] = True
        sent = np.flatnonzero(np.logical_or.reduceat(is_used[self.members], self.offsets)).tolist()
        fits = len(sent) == len(comms) and all(map(self.holds, sent, comms))
        return dict(zip(sent, comms, strict=True)) if sent and fits else None

    def ready_spans(self, ready: Ready) -> list[Span]:
        """First and last gradient of each bucket, None where none of its gradients was accumulated."""
        parameters, at = self._known(ready.parameters), ready.at_ns[self._is_known(ready.parameters)]
        first = np.full(self.parameter_count, _NEVER.max)
        last = np.full(self.parameter_count, _NEVER.min)
        np.minimum.at(first, parameters, at)
        np.maximum.at(last, parameters, at)
        earliest = np.minimum.reduceat(first[self.members], self.offsets).tolist()
        latest = np.maximum.reduceat(last[self.members], self.offsets).tolist()
        return [(a, b) if b != _NEVER.min else (None, None) for a, b in zip(earliest, latest, strict=True)]

    def _known(self, parameters: Ints) -> Ints:
        return parameters[self._is_known(parameters)]

    def _is_known(self, parameters: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return (parameters >= 0) & (parameters < self.parameter_count)


class Layouts:
    """All layouts of a rank's reducers, by the backward in which they were valid."""

    def __init__(self, rank: RankRun) -> None:
        self._plans = {reducer.reducer: _plans(reducer) for reducer in rank.reducers}
        self._drop_layers = {reducer.reducer for reducer in rank.reducers if reducer.kind == DROPS_LAYERS}

    def match(self, reducer: int, backward: int, comms: Sequence[Communication]) -> tuple[PlannedLayout, Calls] | None:
        """The layout that the calls fit, and the call of each bucket."""
        for plan in self._by_preference(reducer, backward):
            found = plan.match(comms)
            if found is not None:
                return plan, found
        return None

    def match_used(
        self, reducer: int, backward: int, comms: Sequence[Communication], used: Ints
    ) -> tuple[PlannedLayout, Calls] | None:
        """As `match`, in a backward that dropped layers. `used`: the parameters with a gradient to reduce."""
        for plan in self._by_preference(reducer, backward) if reducer in self._drop_layers else ():
            found = plan.match_used(comms, used)
            if found is not None:
                return plan, found
        return None

    def of_hook(self, hook: HookCall) -> PlannedLayout | None:
        """The layout whose bucket a hook was given."""
        for plan in self._by_preference(hook.reducer, hook.backward):
            if hook.index < len(plan.nbytes) and plan.nbytes[hook.index] == hook.nbytes:
                return plan
        return None

    def _by_preference(self, reducer: int, backward: int) -> list[PlannedLayout]:
        """Valid in that backward first, then those next to it: a rebuild is told late and may be dated one off."""
        plans = self._plans.get(reducer, [])
        valid = sum(plan.from_backward <= backward for plan in plans) - 1
        return [plans[i] for i in sorted(range(len(plans)), key=lambda i: abs(i - max(valid, 0)))]


def in_force(reducer: Reducer, backward: int) -> tuple[Layout, ...]:
    """The layout that was valid in a backward; none where none is known."""
    begun = sum(layout.from_backward <= backward for layout in reducer.layouts)
    return reducer.layouts[max(begun, 1) - 1 :][:1]


def in_buckets(reducer: Reducer, layouts: Sequence[Layout]) -> tuple[Parameter, ...]:
    """The parameters that these layouts have in a bucket, which frozen ones are in none of; all, without a layout."""
    inside = {index for layout in layouts for bucket in layout.buckets for index in bucket}
    return tuple(parameter for index, parameter in enumerate(reducer.parameters) if index in inside or not layouts)


def _plans(reducer: Reducer) -> list[PlannedLayout]:
    parameters = reducer.parameters
    plans = [
        PlannedLayout(
            layout.layout,
            layout.from_backward,
            tuple(tuple(parameters[i].name for i in bucket) for bucket in layout.buckets),
            tuple(sum(parameters[i].numel for i in bucket) for bucket in layout.buckets),
            tuple(sum(parameters[i].nbytes for i in bucket) for bucket in layout.buckets),
            np.array([i for bucket in layout.buckets for i in bucket], np.int64),
            np.cumsum([0, *(len(bucket) for bucket in layout.buckets)])[:-1],
            len(parameters),
        )
        for layout in reducer.layouts
        if layout.buckets and all(layout.buckets)
    ]
    return sorted(plans, key=lambda plan: (plan.from_backward, plan.layout))


@dataclass(frozen=True, slots=True)
class Filled:
    """The largest bucket of the last layout, and the parameter whose gradient filled it."""

    index: int
    nbytes: int
    by: Sized


@dataclass(frozen=True, slots=True)
class Heaviest:
    """The module whose own parameters weigh most: how many these are, the largest of them, and their bytes."""

    module: str
    parameters: int
    largest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Unused:
    """Under find_unused_parameters: `without`: parameters that got no gradient, and in how many backwards."""

    backwards: int
    without: tuple[tuple[Sized, int], ...]


@dataclass(frozen=True, slots=True)
class ReducerFacts:
    """One reducer in short."""

    reducer: int
    kind: str
    module: str
    bucket_cap_nbytes: int | None
    over_cap: tuple[Sized, ...]  # parameters that alone are larger than a bucket may be
    layouts: tuple[tuple[int, int], ...]  # number of buckets, first backward; in time order
    bulky: tuple[Sized, ...] = ()  # parameters that alone are most of a bucket
    sizes: tuple[tuple[int, ...], ...] = ()  # bytes of its buckets, by layout
    last_nbytes: tuple[tuple[int, ...], ...] = ()  # of the last parameter put into each, as `sizes`
    filled: Filled | None = None
    nbytes: int = 0  # of all parameters in its buckets
    parameters: int = 0  # so many
    largest_nbytes: int = 0  # of one of them
    modules: int = 0  # that have any of them
    heaviest: Heaviest | None = None
    unused: Unused | None = None  # None where nothing looks for unused parameters


def reducer_facts(reducer: Reducer, rank: RankRun) -> ReducerFacts:
    cap, sent = reducer.bucket_cap_nbytes, in_buckets(reducer, reducer.layouts)
    by_module = _by_module(sent)
    return ReducerFacts(
        reducer.reducer,
        reducer.kind,
        reducer.module,
        cap,
        over_cap=tuple(
            (parameter.name, parameter.nbytes) for parameter in sent if cap is not None and parameter.nbytes > cap
        ),
        layouts=tuple((len(layout.buckets), layout.from_backward) for layout in reducer.layouts),
        bulky=tuple(_bulky(reducer)),
        sizes=tuple(tuple(map(_nbytes, buckets)) for buckets in _layouts(reducer)),
        last_nbytes=tuple(tuple(_nbytes(bucket[-1:]) for bucket in buckets) for buckets in _layouts(reducer)),
        filled=_filled(reducer),
        nbytes=_nbytes(sent),
        parameters=len(sent),
        largest_nbytes=max((parameter.nbytes for parameter in sent), default=0),
        modules=len(by_module),
        heaviest=_heaviest(by_module),
        unused=_unused(reducer, sent, rank),
    )


def module_of(parameter: str) -> str:
    """The name of the module that a parameter is of; empty for the outermost one."""
    return parameter.rpartition(".")[0]


def _layouts(reducer: Reducer) -> Iterator[list[list[Parameter]]]:
    """Their buckets' parameters, in the order in which they are put into them."""
    for layout in reducer.layouts:
        yield [[reducer.parameters[index] for index in bucket] for bucket in layout.buckets]


def _nbytes(parameters: Sequence[Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _bulky(reducer: Reducer) -> Iterator[Sized]:
    for bucket in {tuple(bucket) for buckets in _layouts(reducer) for bucket in buckets if bucket}:
        largest = max(bucket, key=attrgetter("nbytes"))
        if 2 * largest.nbytes > _nbytes(bucket):
            yield largest.name, largest.nbytes


def _filled(reducer: Reducer) -> Filled | None:
    last = list(_layouts(reducer))[-1:]
    buckets = [(index, bucket) for buckets in last for index, bucket in enumerate(buckets) if bucket]
    if not buckets:
        return None
    index, bucket = max(buckets, key=lambda one: _nbytes(one[1]))
    return Filled(index, _nbytes(bucket), (bucket[-1].name, bucket[-1].nbytes))


def _by_module(parameters: Sequence[Parameter]) -> dict[str, list[Parameter]]:
    found: defaultdict[str, list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        found[module_of(parameter.name)].append(parameter)
    return found


def _heaviest(by_module: dict[str, list[Parameter]]) -> Heaviest | None:
    if not by_module:
        return None
    module, mine = max(by_module.items(), key=lambda one: _nbytes(one[1]))
    return Heaviest(module, len(mine), max(mine, key=attrgetter("nbytes")).name, _nbytes(mine))


def _unused(reducer: Reducer, sent: Sequence[Parameter], rank: RankRun) -> Unused | None:
    """Over the backwards that were seen whole and that gave it any gradient. Under `static_graph=True` a reducer looks
    once, in its first backward, and then rebuilds its buckets."""
    word = Origin.UNUSED_PARAMETERS.word
    looks = sum(call.origin == word and call.reducer == reducer.reducer for call in rank.calls)
    if not looks or (looks == 1 and len(reducer.layouts) > 1):
        return None
    whole = {mark.backward for mark in rank.phases if mark.phase is Phase.BACKWARD}
    seen = [one for one in rank.ready if one.reducer == reducer.reducer and one.backward in whole]
    ready = np.concatenate([np.empty(0, np.int64), *(one.parameters for one in seen)])
    got = np.bincount(ready, minlength=len(reducer.parameters)).tolist()
    lacking = [
        (parameter, len(seen) - count)
        for parameter, count in zip(reducer.parameters, got, strict=True)
        if parameter in sent
    ]
    return Unused(
        len(seen), tuple(((parameter.name, parameter.nbytes), count) for parameter, count in lacking if count > 0)
    )
