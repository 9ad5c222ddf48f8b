"""Which kinds of parallelism a run shows, by who wanted its collectives.

Only what is sure: a kind that nothing shows is not named, and a run of which no kind is known has no row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.parallelism import Kind, ParallelismRow
from ddptrace.load.tables import Identity
from ddptrace.schema import Origin

BY_ORIGIN: Final = {
    Origin.FSDP.word: Kind.FSDP,
    Origin.ZERO.word: Kind.ZERO,
    Origin.TENSOR_PARALLEL.word: Kind.TENSOR,
    Origin.PIPELINE.word: Kind.PIPELINE,
    Origin.MOE.word: Kind.EXPERT,
    Origin.EMBEDDINGS.word: Kind.EMBEDDINGS,
}
SHARES_UPDATES: Final = ("all_gather", "reduce_scatter", "broadcast")
"""Ops with which a sharded optimizer gets its part of the gradients, or spreads its part of the parameters."""


def parallelism_rows(ranks: Sequence[RankTables]) -> list[ParallelismRow]:
    """In the order of `Kind`."""
    by_kind: defaultdict[Kind, list[CollectiveRow]] = defaultdict(list)
    rows = [row for rank in ranks for row in rank.collectives]
    of_fsdp = {row.group for row in rows if row.origin == Origin.FSDP.word}
    for row in rows:
        kind = _kind(row, of_fsdp)
        if kind is not None:
            by_kind[kind].append(row)
    told = {Kind.DDP: _reducers(ranks), Kind.INFERENCE: _named(rank.facts.serves for rank in ranks)}
    return [
        _row(kind, told.get(kind) or _origins(by_kind[kind]), by_kind[kind])
        for kind in Kind
        if told.get(kind) or by_kind.get(kind)
    ]


def _kind(row: CollectiveRow, of_fsdp: set[str]) -> Kind | None:
    """What a collective shows. Operators on sharded tensors also serve FSDP, in its own group."""
    if row.bucket is not None:
        return Kind.DDP
    if row.origin == Origin.DTENSOR.word:
        return None if row.group in of_fsdp else Kind.TENSOR
    if row.origin == Origin.OPTIMIZER.word and row.op.startswith(SHARES_UPDATES):
        return Kind.ZERO
    if row.origin == Origin.GRADIENTS.word and row.identity is not Identity.RECORDED:
        return Kind.ZERO if row.op.startswith("reduce_scatter") else Kind.DATA
    return BY_ORIGIN.get(row.origin or "")


def _reducers(ranks: Iterable[RankTables]) -> str:
    return _named(reducer.kind for rank in ranks for reducer in rank.facts.reducers)


def _named(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _origins(rows: Iterable[CollectiveRow]) -> str:
    """As in "reduce_scatter_tensor (gradients), all_gather_into_tensor (optimizer)"."""
    counts = Counter((row.op.rstrip("_"), row.origin) for row in rows)
    return ", ".join(f"{op} ({origin})" for (op, origin), _ in counts.most_common())


def _row(kind: Kind, told_by: str, rows: Sequence[CollectiveRow]) -> ParallelismRow:
    sizes = Counter(row.group_size for row in rows if row.group_size is not None)
    exposed = [row.exposed_charged_ns for row in rows if row.exposed_charged_ns is not None]
    return ParallelismRow(
        kind.value,
        told_by,
        next(iter(sizes.most_common(1)), (None, 0))[0],
        len({(row.rank, row.seq) for row in rows}),
        sum(exposed) if exposed else None,
    )
