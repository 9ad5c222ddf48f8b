"""The rows that spans and metrics are made of, out of a batch and out of a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow, GroupRow
from ddptrace.analysis.tables.table import Table
from ddptrace.live.batch import Identity, Losses, RankBatch
from ddptrace.load.run import read_run
from ddptrace.schema import Kind
from ddptrace.telemetry.rows import Parent, RankRows, of_batch, of_result, parent_of
from ddptrace.telemetry.spans.trees import LINKS_MAX, Node, trees
from tests.made import make_result
from tests.unit.telemetry_records import BUCKETS, CALLS, RUN_ID, STEP_NS, recording, write_manifest

TABLES = ("steps", "phases", "buckets", "collectives")


class Counted(Table[Any]):
    """How often its rows are looked at."""

    visits = 0

    def __iter__(self) -> Iterator[Any]:
        for row in super().__iter__():
            self.visits += 1
            yield row


def counted(result: Result) -> dict[str, Counted]:
    return {name: Counted(getattr(result, name).row_type, list(getattr(result, name))) for name in TABLES}


def test_every_row_of_a_result_is_looked_at_once_however_many_ranks_there_are() -> None:
    result = make_result(ranks=256, steps=2, buckets=1)
    tables = counted(result)
    made = [len(list(trees(rows))) for rows in of_result(dataclasses.replace(result, **tables))]  # type: ignore[arg-type]
    assert made == [2] * 256
    assert {name: table.visits for name, table in tables.items()} == {name: len(tables[name]) for name in TABLES}


def test_each_rank_has_its_own_rows_in_the_order_of_time() -> None:
    result = make_result(ranks=3, steps=2, buckets=2)
    for rank, rows in enumerate(of_result(result)):
        assert (rows.rank, rows.run_id, rows.zero_unix_ns) == (rank, result.run_id, result.zero_unix_ns)
        for name in TABLES:
            assert list(getattr(rows, name)) == [row for row in getattr(result, name) if row.rank == rank]
    assert rank == 2


def calls(rows: RankRows) -> list[Node]:
    found: list[Node] = [root for tree in trees(rows) for root in tree.roots]
    for node in found:  # grows as it goes
        found.extend(node.children)
    return [node for node in found if node.key[0] == "collective"]


def in_groups(ranks: int, groups: list[GroupRow], turn: int | None = 5) -> list[RankRows]:
    result = make_result(ranks=ranks, steps=1, buckets=1)
    rows = [dataclasses.replace(row, turn=turn) for row in result.collectives if row.seq == 1]
    collectives = Table(CollectiveRow, rows)
    return list(of_result(dataclasses.replace(result, collectives=collectives, groups=Table(GroupRow, groups))))


def peers(rows: RankRows) -> list[int]:
    (node,) = calls(rows)
    assert {link.key for link in node.links} <= {node.key}
    return [link.rank for link in node.links]


def test_links_go_to_all_others_of_a_small_group_and_to_the_next_of_a_large_one() -> None:
    small = in_groups(9, [GroupRow("default", tuple(range(9)), ())])
    assert [sorted(peers(rows)) for rows in small] == [[k for k in range(9) if k != rank] for rank in range(9)]
    large = in_groups(20, [GroupRow("default", tuple(range(20)), ())])
    assert [peers(rows) for rows in large] == [[(rank + k) % 20 for k in range(1, 9)] for rank in range(20)]
    assert LINKS_MAX == 8


def test_ranks_of_a_group_are_those_of_the_one_that_the_rank_is_in() -> None:
    rows = in_groups(4, [GroupRow("default", (2, 0), ()), GroupRow("default", (1, 3), ())])
    assert [peers(one) for one in rows] == [[2], [3], [0], [1]]


def test_a_collective_without_a_turn_or_of_an_unknown_group_has_no_links() -> None:
    assert peers(in_groups(2, [GroupRow("default", (0, 1), ())], turn=None)[0]) == []
    assert peers(in_groups(2, [])[0]) == []
    assert peers(dataclasses.replace(in_groups(2, [])[0], groups={"default": (1, 2)})) == []  # it is not in it


def test_a_collective_of_a_batch_that_failed_has_its_error(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 2)
        rank.step(2)  # whose last collective fails
        done = rank.begin + 3 * STEP_NS
        rank.recorder.event(Kind.DONE, 1, rank.recorder.intern("Connection closed by peer"), done, done, 3 * CALLS)
    write_manifest(tmp_path)
    tables = analyze_rank(read_run(tmp_path).ranks[0])
    rows = of_batch(RankBatch(Identity(RUN_ID, 0, 0, {}), 0, tables, range(3), True, Losses(), 3, 0))
    assert {node.attributes["ddptrace.collective.seq"]: node.error for node in calls(rows) if node.error} == {
        3 * CALLS: "Connection closed by peer"
    }


TRACEPARENT = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01"


def test_a_batch_has_the_rows_of_its_rank_and_the_users_span(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, 3)
    write_manifest(tmp_path)
    tables = analyze_rank(read_run(tmp_path).ranks[0])
    meta = {"traceparent": TRACEPARENT}
    batch = RankBatch(Identity(RUN_ID, 0, 0, meta), 17, tables, range(3), True, Losses(), 3, 0)
    rows = of_batch(batch)
    assert (rows.run_id, rows.rank, rows.zero_unix_ns) == (RUN_ID, 0, 17)
    assert rows.groups == {"0": (0, 1)}
    assert rows.parent == Parent(0x0123456789ABCDEF0123456789ABCDEF, 0x00F067AA0BA902B7, 1)
    assert [len(one) for one in (rows.steps, rows.buckets)] == [3, 3 * BUCKETS]
    assert [peers(dataclasses.replace(rows, collectives=(row,))) for row in rows.collectives[:CALLS]] == [[1]] * CALLS


@pytest.mark.parametrize(
    "text",
    [
        None, 7, "", "01" + TRACEPARENT[2:], TRACEPARENT + "-00", TRACEPARENT.upper(),
        TRACEPARENT.replace("0123456789abcdef", "0" * 16), TRACEPARENT.replace("00f067aa0ba902b7", "0" * 16),
    ],
)  # fmt: skip
def test_a_parent_that_is_not_understood_is_none(text: object) -> None:
    assert parent_of({"traceparent": TRACEPARENT}) is not None
    assert parent_of({"traceparent": text}) is None
