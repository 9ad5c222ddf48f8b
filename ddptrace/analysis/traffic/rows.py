"""Tells what one rank gave to its collectives, step by step, and what its all-to-alls exchange with other ranks.

Each call counts once, in the step that launched it: bytes do not depend on when a collective ran, or whether that is
known. Rows of `exchanges` are first those of each rank, then with what the other ranks of the group send:

            to rank 0   to rank 1
rank 0 sends    100        300         rank 1 gets 600 of 800 bytes:
rank 1 sends    100        300         1.5 times the mean
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from ddptrace.analysis.collectives.execution import Communication
from ddptrace.analysis.collectives.rows import HOOK_OP, moved_nbytes, origin_of
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.parallelism import ExchangeRow
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.load.tables import Call, Identity
from ddptrace.ops import SENT, SPARSE
from ddptrace.schema import Phase

Kind = tuple[str, str, int | None, str | None, str]
"""Op, group, ranks in the group, origin, dtype."""


def traffic_rows(view: RankView) -> list[TrafficRow]:
    """One row per step, kind and peer, in the order in which they were first launched."""
    sizes = {group.name: len(group.ranks) for group in view.rank.groups if group.ranks}
    carriers = {comm.seq for occurrence in view.found for comm in occurrence.comms}
    at = view.steps.at(np.array([comm.launch_at_ns for comm in view.comms], np.int64)).tolist()
    alike: defaultdict[tuple[int | None, Kind, int | None], list[Communication]] = defaultdict(list)
    for comm, position in zip(view.comms, at, strict=True):
        peer = None if comm.call is None else comm.call.peer
        alike[view.ordinal(position), _kind(comm, sizes, origin_of(comm, carriers)), peer].append(comm)
    return [_traffic_row(view.rank.rank, step, kind, peer, comms) for (step, kind, peer), comms in alike.items()]


def by_kind(rows: Iterable[TrafficRow]) -> list[TrafficRow]:
    """One row per rank, step and kind: those of different peers added up."""
    alike: defaultdict[tuple[int, int | None, Kind], list[TrafficRow]] = defaultdict(list)
    for row in rows:
        alike[row.rank, row.step, kind_of(row)].append(row)
    return [mine[0] if len(mine) == 1 else _together(mine) for mine in alike.values()]


def kind_of(row: TrafficRow) -> Kind:
    return row.op, row.group, row.group_size, row.origin, row.dtype


def _together(rows: Sequence[TrafficRow]) -> TrafficRow:
    return replace(
        rows[0],
        calls=sum(row.calls for row in rows),
        nbytes_in=_sum(row.nbytes_in for row in rows),
        nbytes_out=_sum(row.nbytes_out for row in rows),
        sent_nbytes=_sum(row.sent_nbytes for row in rows),
        peer=None,
    )


def _kind(comm: Communication, sizes: Mapping[str, int], origin: str | None) -> Kind:
    call = comm.call
    if call is None:
        assert comm.hook is not None
        return HOOK_OP, "", None, origin, comm.hook.dtype
    size = call.group_size if call.group_size is not None else sizes.get(call.group)
    return call.op, call.group, size, origin, call.dtype


def _traffic_row(
    rank: int, step: int | None, kind: Kind, peer: int | None, comms: Sequence[Communication]
) -> TrafficRow:
    calls, size = [comm.call for comm in comms], kind[2]
    return TrafficRow(
        rank,
        step,
        *kind,
        len(comms),
        nbytes_in=_sum(None if call is None or _is_unknown(call) else call.nbytes_in for call in calls),
        nbytes_out=_sum(None if call is None or _is_unknown(call) else call.nbytes_out for call in calls),
        sent_nbytes=_sum(None if call is None else sent_nbytes(call, size) for call in calls),
        peer=peer,
    )


def sent_nbytes(call: Call, group_size: int | None) -> int | None:
    """What one rank sends for the call, on average over its group; None where op, bytes or group are not known."""
    factor = SENT.get(call.op)
    if factor is None or not group_size or _is_unknown(call):
        return None
    return round((moved_nbytes(call, group_size) or 0) * factor(group_size))


def _is_unknown(call: Call) -> bool:
    """No bytes were recorded, which does not mean that there were none."""
    nothing = not call.nbytes_in and not call.nbytes_out
    return nothing and (call.identity is not Identity.RECORDED or call.op == SPARSE)


def _sum(values: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


# What all-to-alls exchange --------------------------------------------------------------------------------------------


Exchange = tuple[str, tuple[int, ...], int]
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
    together: defaultdict[Exchange, dict[int, ExchangeRow]] = defaultdict(dict)
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
