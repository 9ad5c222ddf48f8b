"""What a trace says that moving the bytes took, on a made result whose matches are known by hand."""

from __future__ import annotations

from dataclasses import replace

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.table import Table
from ddptrace.bench.experiments.ddp import transfer_ns
from tests.made import make_result

BUCKETS = 3
TRANSFER_NS = 1000


def matched(*, but: int = 0) -> Result:
    """Two ranks whose collectives are pairs of 1000 ns each; the last `but` calls of a step are not matched."""
    result = make_result(2, 3, BUCKETS)
    numbers = {seq: at for at, seq in enumerate(sorted({row.seq for row in result.collectives}))}
    per_step = BUCKETS + 1

    def match(row: CollectiveRow) -> CollectiveRow:
        at = numbers[row.seq]
        return replace(row, match=at if at % per_step < per_step - but else None)

    rows = [
        MatchRow(at, "default", at, "all_reduce", 4, (0, 1), (seq, seq), 0, 0, 9, 9, TRANSFER_NS)
        for seq, at in numbers.items()
    ]
    return replace(
        result, matches=Table(MatchRow, rows), collectives=Table(CollectiveRow, list(map(match, result.collectives)))
    )


def test_a_steps_transfer_is_the_sum_over_its_collectives() -> None:
    assert transfer_ns(matched()) == (BUCKETS + 1) * TRANSFER_NS


def test_where_one_collective_is_not_matched_the_sum_is_not_known() -> None:
    assert transfer_ns(matched(but=1)) is None
    assert transfer_ns(matched(but=BUCKETS + 1)) is None


def test_without_ranks_to_compare_nothing_is_known() -> None:
    assert transfer_ns(make_result(1, 3, BUCKETS)) is None
