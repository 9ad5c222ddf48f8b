"""What findings and advice need of a reducer: small, and whole without the rank's records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ddptrace.analysis.buckets.layouts import in_buckets
from ddptrace.load.tables import Parameter, RankRun, Reducer
from ddptrace.schema import Origin, Phase

Sized = tuple[str, int]
"""Name and bytes."""


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
    """Over the backwards that were seen whole and that gave it any gradient."""
    looks = Origin.UNUSED_PARAMETERS.word
    if not any(call.origin == looks and call.reducer == reducer.reducer for call in rank.calls):
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
