"""Ranks analyzed on their own and put together afterwards."""

from __future__ import annotations

import pickle

from analysis_records import Piece, call, gpu_call, gpu_window, hook, layout, mark, rank, reducer, run, step

from ddptrace.analysis.analyze import RunHead, analyze_rank, analyze_run, combine
from ddptrace.analysis.run_view import taken_from
from ddptrace.findings import Finding
from ddptrace.load.tables import RankRun, Run
from ddptrace.schema import Phase


def ranks() -> list[RankRun]:
    return [
        rank(0, steps=[step(0, 0, 50)], phases=[mark(Phase.BACKWARD, 10, 40, 0)], calls=[call(1, 12, ran=(13, 30))]),
        rank(1, steps=[step(0, 0, 50)], calls=[gpu_call(1, 12, (20, 31))], windows=[
            gpu_window(0, 50, Piece(5, 25, (2, 3), module="Net_0"), Piece(30, 45, (20, 21)))
        ], hooks=[hook(9, 1, 2, 3)], reducers=[reducer([5, 1], layout(0, 0, (0,), (1,)), cap=8)]),
        rank(2, calls=[call(1, 5)], clean=False),
    ]  # fmt: skip


def head(one: Run) -> RunHead:
    return RunHead(one.schema, one.run_id, one.zero_unix_ns, one.world_size, one.findings)


def test_ranks_that_went_through_a_pipe_give_the_same_result_as_the_run_at_once() -> None:
    said = Finding("torn-tail", "warning", "rank 0", "The tail was torn.")
    one = run(*ranks(), world_size=3, findings=[said])
    sent = [pickle.loads(pickle.dumps(analyze_rank(rank))) for rank in one.ranks]
    assert combine(head(one), sent).to_json_dict() == analyze_run(one).to_json_dict()
    assert combine(head(one), sent).findings[0] == said


def test_the_order_in_which_ranks_come_back_does_not_matter() -> None:
    one = run(*ranks(), world_size=3)
    tables = [analyze_rank(rank) for rank in one.ranks]
    there, back = combine(head(one), tables), combine(head(one), reversed(tables))
    assert there.to_json_dict() == back.to_json_dict()
    assert [activity.rank for activity in back.activity] == [0, 1, 2]
    assert len(back.findings) > 4


def test_only_what_a_rank_did_is_in_its_tables_not_its_records() -> None:
    tables = analyze_rank(rank(reducers=[reducer([1] * 50_000, layout(0, 0, tuple(range(50_000))))]))
    assert len(pickle.dumps(tables)) < 10_000


def test_tables_that_are_taken_from_a_list_are_in_order_and_no_longer_in_it() -> None:
    tables = [analyze_rank(one) for one in ranks()]
    numbers = []
    for table in taken_from(tables):
        assert all(left is not table for left in tables)
        numbers.append(table.row.rank)
    assert numbers == [0, 1, 2]
    assert not tables
