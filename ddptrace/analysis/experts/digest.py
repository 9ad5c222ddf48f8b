"""How uneven the all-to-alls of each layer are, and how long the other ranks wait for the one that gets most.

dispatch     rank 1 gets 3/4 of the tokens
experts      rank 0 [====)           rank 1 [============)
combine      rank 0      ├── waits ──────── rank 1 launches it last: the imbalance has cost that
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps
from ddptrace.analysis.tables.parallelism import ExchangeRow

Key = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class LayerDigest:
    """The most uneven all-to-all of one layer and phase: means over the typical steps."""

    layer: str
    phase: str | None
    ranks: tuple[int, ...]
    pairs: tuple[tuple[float, ...], ...]  # bytes in a step from each rank to each
    imbalance_ratio: float
    largest_rank: int | None  # that most often gets most; None where all always get as much
    cost_ns: float | None  # of a step: mean over the ranks of what they wait for it in the next; None: not known

    @property
    def received_nbytes(self) -> tuple[float, ...]:
        """By each rank in a step."""
        return tuple(map(sum, zip(*self.pairs, strict=True)))


def layer_digests(result: Result) -> list[LayerDigest]:
    """Return the layers whose all-to-alls are known on all ranks, the most uneven first."""
    steps = {row.step for row in measured_steps(result.steps)[0]}
    rows = [row for row in result.exchanges if row.imbalance_ratio is not None]
    chosen = [row for row in rows if row.step in steps] or rows
    costs = _costs(rows)
    places: Counter[tuple[int, int | None, str, str | None]] = Counter()
    alike: defaultdict[tuple[str, str | None, tuple[int, ...], int], list[ExchangeRow]] = defaultdict(list)
    for row in chosen:
        place = row.rank, row.step, row.layer, row.phase
        alike[row.layer, row.phase, row.ranks, places[place]].append(row)
        places[place] += 1
    worst: dict[tuple[str, str | None, tuple[int, ...]], LayerDigest] = {}
    for (layer, phase, ranks, _), mine in alike.items():
        digest = _digest(layer, phase, ranks, mine, costs)
        known = worst.get((layer, phase, ranks))
        if known is None or digest.imbalance_ratio > known.imbalance_ratio:
            worst[layer, phase, ranks] = digest
    return sorted(worst.values(), key=lambda one: (-one.imbalance_ratio, one.layer))


def _digest(
    layer: str, phase: str | None, ranks: tuple[int, ...], rows: Sequence[ExchangeRow], costs: Mapping[Key, float]
) -> LayerDigest:
    by_rank: defaultdict[int, list[ExchangeRow]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    pairs = tuple(tuple(map(fmean, zip(*(row.sent_nbytes for row in by_rank[rank]), strict=True))) for rank in ranks)
    found = [costs[key] for row in rows if (key := _key(row)) in costs]
    most = Counter(row.largest_rank for row in rows if row.largest_rank is not None)
    return LayerDigest(
        layer,
        phase,
        ranks,
        pairs,
        fmean(row.imbalance_ratio or 1 for row in rows),
        next((rank for rank, _ in most.most_common(1)), None),
        fmean(found) if found else None,
    )


def _key(row: ExchangeRow) -> Key:
    return row.group, row.ranks, row.turn or 0


def _costs(rows: Iterable[ExchangeRow]) -> dict[Key, float]:
    """By exchange, how long the ranks wait on average in the next one of their group for the rank that got most."""
    by_group: defaultdict[tuple[str, tuple[int, ...]], defaultdict[int, list[ExchangeRow]]]
    by_group = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_group[row.group, row.ranks][row.turn or 0].append(row)
    found: dict[Key, float] = {}
    for (group, ranks), turns in by_group.items():
        order = sorted(turns)
        for turn, after in pairwise(order):
            waits = {row.rank: row.waited_ns for row in turns[after]}
            known = [wait for wait in waits.values() if wait is not None]
            if len(known) == len(ranks):
                largest = turns[turn][0].largest_rank
                is_last = largest is not None and waits[largest] == 0
                found[group, ranks, turn] = fmean(known) if is_last else 0.0
    return found
