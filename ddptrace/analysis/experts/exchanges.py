"""Rows of `exchanges`: first of each rank, then with what the other ranks of the group send.

            to rank 0   to rank 1
rank 0 sends    100        300         rank 1 gets 600 of 800 bytes:
rank 1 sends    100        300         1.5 times the mean
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.experts import ExchangeRow
from ddptrace.load.tables import Call
from ddptrace.schema import Phase

Key = tuple[str, tuple[int, ...], int]
"""Group, its ranks, turn."""
PHASES = (Phase.FORWARD, Phase.BACKWARD)


def exchange_rows(view: RankView) -> Iterator[ExchangeRow]:
    """One rank's all-to-alls whose parts are known, in launch order."""
    ranks = {group.name: group.ranks for group in view.rank.groups}
    calls = [call for call in view.rank.calls if call.sent_nbytes is not None]
    launches = np.array([call.launch_at_ns for call in calls], np.int64)
    steps, phases = view.steps.at(launches).tolist(), view.phases.at(launches).tolist()
    for call, step, phase in zip(calls, steps, phases, strict=True):
        members = ranks.get(call.group, ())
        if call.sent_nbytes is not None and len(members) == len(call.sent_nbytes):
            yield ExchangeRow(
                view.rank.rank,
                view.ordinal(step),
                call.seq,
                call.op,
                call.group,
                members,
                call.turn,
                Phase(phase).name.lower() if phase in PHASES else None,
                _layer(call),
                call.sent_nbytes,
                call.launch_at_ns,
            )


def _layer(call: Call) -> str:
    return call.module or call.site or call.through or call.group


def whole_exchanges(ranks: Sequence[RankTables]) -> Iterator[ExchangeRow]:
    """All ranks' rows, with what each gets where all ranks of the group are known."""
    together: defaultdict[Key, dict[int, ExchangeRow]] = defaultdict(dict)
    for rank in ranks:
        for row in rank.exchanges:
            if row.turn is not None:
                together[row.group, row.ranks, row.turn][row.rank] = row
    on_device = {rank.facts.rank for rank in ranks if rank.facts.on_device}
    for rank in ranks:
        for row in rank.exchanges:
            all_of_it = {} if row.turn is None else together[row.group, row.ranks, row.turn]
            is_whole = len(all_of_it) == len(row.ranks)
            yield compared(row, all_of_it, bool(on_device & set(row.ranks))) if is_whole else row


def compared(row: ExchangeRow, all_of_it: Mapping[int, ExchangeRow], on_device: bool) -> ExchangeRow:
    gets = [sum(all_of_it[rank].sent_nbytes[place] for rank in row.ranks) for place in range(len(row.ranks))]
    mean, most = fmean(gets), max(gets)
    own = row.ranks.index(row.rank)
    last = max(one.launch_at_ns for one in all_of_it.values())
    return replace(
        row,
        received_nbytes=tuple(all_of_it[rank].sent_nbytes[own] for rank in row.ranks),
        largest_rank=row.ranks[gets.index(most)] if most > min(gets) else None,
        imbalance_ratio=most / mean if mean else None,
        waited_ns=None if on_device else last - row.launch_at_ns,
    )
