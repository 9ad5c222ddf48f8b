"""What findings and advice need of a rank beside its rows: small, and whole without the rank's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddptrace.analysis.collectives import HOOK_OP
from ddptrace.analysis.intervals import subtract, total, union
from ddptrace.analysis.view import View
from ddptrace.load.tables import Reducer
from ddptrace.schema import Evidence


@dataclass(frozen=True, slots=True)
class ReducerFacts:
    """One reducer in short."""

    reducer: int
    kind: str
    module: str
    bucket_cap_nbytes: int | None
    over_cap: tuple[tuple[str, int], ...]  # parameters that alone are larger than a bucket may be, and their bytes
    layouts: tuple[tuple[int, int], ...]  # number of buckets, first backward; in time order


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank in short. Counts are of communications."""

    rank: int
    host: str
    pid: int
    clean: bool
    recorded: bool  # by ddptrace; False: read out of somebody's profiler files
    dropped: int  # records lost
    last_step: int | None  # None without steps
    ended_by: tuple[str, ...]  # what ended its steps, each kind once
    by_evidence: Mapping[Evidence | None, int]
    unknown_ops: Mapping[str, int]  # ops of those of which nothing tells when they ran, first seen first
    unmatched: int  # (reducer, backward) pairs that fit no known bucket layout
    hooks: tuple[str, ...]
    reducers: tuple[ReducerFacts, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # name and ranks of each process group
    outside_ns: int  # device work outside all steps' windows; 0 without steps

    @property
    def comms(self) -> int:
        return sum(self.by_evidence.values())


def facts_of(view: View) -> RankFacts:
    rank = view.rank
    unknown = Counter(comm.call.op if comm.call else HOOK_OP for comm in view.comms if comm.evidence is None)
    return RankFacts(
        rank.rank, rank.host, rank.pid, rank.clean, rank.recorded, rank.dropped,
        last_step=rank.steps[-1].ordinal if rank.steps else None,
        ended_by=tuple(sorted({mark.ended_by.name.lower() for mark in rank.steps})),
        by_evidence=dict(Counter(comm.evidence for comm in view.comms)),
        unknown_ops=dict(unknown), unmatched=len(view.unmatched),
        hooks=tuple(sorted({hook.name for hook in rank.hooks})),
        reducers=tuple(_reducer_facts(reducer) for reducer in rank.reducers),
        groups=tuple((group.name, group.ranks) for group in rank.groups), outside_ns=_outside_ns(view),
    )  # fmt: skip


def _reducer_facts(reducer: Reducer) -> ReducerFacts:
    cap = reducer.bucket_cap_nbytes
    over = ((one.name, one.nbytes) for one in reducer.parameters if cap is not None and one.nbytes > cap)
    layouts = tuple((len(layout.buckets), layout.from_backward) for layout in reducer.layouts)
    return ReducerFacts(reducer.reducer, reducer.kind, reducer.module, cap, tuple(over), layouts)


def _outside_ns(view: View) -> int:
    works = [window.work for window in view.device.profiled]
    busy = union(*(np.column_stack((work.begin_at_ns, work.end_at_ns)) for work in works))
    return total(subtract(busy, union(view.windows.spans()))) if view.rank.steps else 0
