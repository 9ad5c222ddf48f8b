"""From RPC records to rows: pieces that are missing, and sides that were not traced."""

from __future__ import annotations

from dataclasses import replace

from ddptrace.analysis.rpc.rows import RankCalls, rpc_pair_rows, rpc_rows
from ddptrace.load.records.calls import rank_rpc
from ddptrace.load.records.rank_events import Row
from ddptrace.load.tables import RankRpc, RpcCall, RpcRun
from ddptrace.schema import CALL_BITS, Kind, RpcFlag, RpcOp

WORKERS: list[dict[str, object]] = [{"name": "w0", "id": 0}, {"name": "w0", "id": 0}, {"id": "damaged"}]
TEXTS = {0: "", 1: "forward", 2: "w1", 3: "ValueError", 4: "w0"}
CALL = RpcCall(
    7, RpcOp.RPC_SYNC, "forward", "w1", False, False, 100, 110, 200, None, 50, 60, wants_nbytes=40, gradient_nbytes=None
)
RUN = RpcRun(7, "forward", "w0", 120, 180, False, False, 50, 60, gradient_nbytes=None)


def row(
    kind: Kind, begin: int, end: int = 0, *, flags: int = 0, name: int = 0, a: int = 0, b: int = 0, c: int = 0,
    d: int = 0, f: int = 0,
) -> Row:  # fmt: skip
    return int(kind), flags, 1, name, begin, end, a, b, c, d, 0, f, 0


def loaded(*rows: Row) -> RankRpc:
    return rank_rpc(lambda kind: [one for one in rows if one[0] == kind], TEXTS.__getitem__, WORKERS, {1: 900})


def test_a_call_is_put_together_from_its_pieces() -> None:
    rpc = loaded(
        row(Kind.RPC, 100, 110, name=1, a=7, b=50, c=40, d=2, f=RpcOp.RPC_ASYNC, flags=RpcFlag.NATIVE),
        row(Kind.RPC_DONE, 200, a=7, b=60, c=3),
        row(Kind.RPC_GRADIENT, 300, a=3, b=40),
        row(Kind.RPC_GRADIENT, 310, a=3, b=2),
    )
    expected = replace(CALL, op=RpcOp.RPC_ASYNC, is_native=True, gradient_nbytes=42, thread=900)
    assert rpc == RankRpc(((0, "w0"), (-1, "?")), (expected,), ())


def test_a_call_without_an_end_and_one_of_an_unknown_op() -> None:
    rpc = loaded(
        row(Kind.RPC, 100, 110, name=1, a=7, b=-1, d=2, f=RpcOp.TO_HERE),
        row(Kind.RPC, 120, 130, name=1, a=8, d=2, f=99),
    )
    (call,) = rpc.calls
    assert (call.done_at_ns, call.error, call.nbytes_out, call.nbytes_back) == (None, None, None, None)


def test_a_call_whose_end_may_have_been_let_go_is_not_known_to_be_open() -> None:
    kept = row(Kind.RPC, 100, 110, name=1, a=7, d=2, f=RpcOp.TO_HERE)
    ended = row(Kind.RPC, 120, 130, name=1, a=8, d=2, f=RpcOp.TO_HERE)
    gap = row(Kind.LET_GO, 200, 300, a=5)
    hangs = row(Kind.RPC, 400, 410, name=1, a=9, d=2, f=RpcOp.TO_HERE)
    told = (kept, ended, row(Kind.RPC_DONE, 140, a=8), gap, hangs)
    assert [(call.id, call.done_at_ns) for call in loaded(*told).calls] == [(8, 140), (9, None)]


def test_a_run_that_raised_has_two_answers() -> None:
    rpc = loaded(
        row(Kind.RPC_RUN, 120, 180, name=1, a=7, b=50, c=3, d=4),
        row(Kind.RPC_ANSWER, 181, a=3, b=-1, flags=1),
        row(Kind.RPC_ANSWER, 182, a=3, b=60, flags=1),
    )
    assert rpc.runs == (replace(RUN, failed=True),)


def test_a_run_of_an_untraced_caller_that_keeps_its_result() -> None:
    (run,) = loaded(row(Kind.RPC_RUN, 120, 180, name=1, b=50, c=3)).runs
    assert run == replace(RUN, call=None, caller=None, nbytes_back=None)


def ranks(calls: tuple[RpcCall, ...], runs: tuple[RpcRun, ...]) -> list[RankCalls]:
    caller = RankCalls(0, RankRpc(((0, "w0"),), calls, ()), (5,) * len(calls))
    return [caller, RankCalls(1, RankRpc(((1, "w1"),), (), runs), ())]


def test_the_two_sides_of_a_call_are_one_row() -> None:
    (one,) = rpc_rows(ranks((CALL,), (RUN,)))
    assert (one.caller, one.rank, one.callee, one.callee_rank, one.step) == ("w0", 0, "w1", 1, 5)
    assert (one.call_ns, one.run_ns, one.failed, one.gradient_inferred) == (100, 60, False, False)


def test_gradients_of_arguments_are_inferred_only_where_nobody_saw_them_and_backward_came_by() -> None:
    reached = replace(CALL, gradient_nbytes=60)
    (measured,) = rpc_rows(ranks((reached,), (replace(RUN, gradient_nbytes=4),)))
    (silent,) = rpc_rows(ranks((reached,), (RUN,)))
    (inferred,) = rpc_rows(ranks((reached,), ()))
    (unreached,) = rpc_rows(ranks((CALL,), ()))
    told = [(one.gradient_nbytes_back, one.gradient_inferred) for one in (measured, silent, inferred, unreached)]
    assert told == [(4, False), (None, False), (40, True), (None, False)]


def test_a_run_whose_call_nobody_recorded_is_a_row_of_its_own() -> None:
    calls, lost = rpc_rows(ranks((CALL,), (replace(RUN, call=8, begin_at_ns=150, failed=True),)))
    assert (calls.run_ns, lost.id, lost.op, lost.caller, lost.callee, lost.failed) == (None, 8, None, "w0", "w1", True)


def test_pairs_add_up_by_kind_of_call() -> None:
    calls = (
        CALL,
        replace(CALL, id=8, done_at_ns=None, nbytes_back=None),
        replace(CALL, id=9, error="timeout", nbytes_back=None),
        replace(CALL, id=10, is_internal=True),
        replace(CALL, id=11, op=RpcOp.REMOTE),
    )
    pairs = rpc_pair_rows(rpc_rows(ranks(calls, (RUN,))))
    assert [(pair.op, pair.internal, pair.calls) for pair in pairs] == [
        ("remote", False, 1),
        ("rpc_sync", False, 3),
        ("rpc_sync", True, 1),
    ]
    sync = pairs[1]
    assert (sync.failed, sync.unfinished, sync.nbytes_out, sync.nbytes_back) == (1, 1, 150, 60)
    assert (sync.call_ns, sync.runs, sync.run_ns) == (200, 1, 60)


def test_a_call_that_nobody_served_has_the_name_that_its_caller_had_then() -> None:
    calls = tuple(replace(CALL, id=worker << CALL_BITS | 1) for worker in (3, 5, 4))
    rejoined = RankCalls(0, RankRpc(((3, "before"), (5, "after")), calls, ()), (None,) * 3)
    assert [row.caller for row in rpc_rows([rejoined])] == ["before", "after", None]
    assert [
        row.callee_rank
        for row in rpc_rows(
            [
                replace(
                    rejoined,
                    rpc=replace(rejoined.rpc, calls=(replace(CALL, callee="before"), replace(CALL, callee="after"))),
                    steps=(None, None),
                )
            ]
        )
    ] == [0, 0]
