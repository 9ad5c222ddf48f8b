"""Makes a rank's remote calls and runs of its RPC records: several for each, joined by call id or message number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddptrace.load.records.events import BEGIN, END, FLAGS, NAME, THREAD, A, B, C, D, F, Row
from ddptrace.load.records.kept import LONG_AGO
from ddptrace.load.tables import RankRpc, RpcCall, RpcRun, RpcWait
from ddptrace.schema import Kind, RpcFlag, RpcOp


def rank_rpc(
    rows: Callable[[Kind], list[Row]],
    text: Callable[[int], str],
    workers: Sequence[Mapping[str, Any]],
    threads: Mapping[int, int],
) -> RankRpc:
    """`rows` of a kind are in time order; `text` returns the text of a string id; `threads` has the system's ids of the
    thread numbers in records. A call of an unknown op is left out. So is a call without an end if later records were
    deleted: its end may have been among them."""
    gradients: dict[int, int] = defaultdict(int)  # by message number
    for row in rows(Kind.RPC_GRADIENT):
        gradients[row[A]] += row[B]
    done = {row[A]: row for row in reversed(rows(Kind.RPC_DONE))}
    answers: dict[int, list[Row]] = defaultdict(list)
    for row in rows(Kind.RPC_ANSWER):
        answers[row[A]].append(row)
    ops = set(RpcOp)
    let_go_until = max((row[END] for row in rows(Kind.LET_GO)), default=LONG_AGO)
    calls = [
        _call(row, done.get(row[A]), gradients, text, threads)
        for row in rows(Kind.RPC)
        if row[F] in ops and (row[A] in done or row[BEGIN] > let_go_until)
    ]
    runs = [_run(row, answers.get(row[C], []), gradients.get(row[C]), text) for row in rows(Kind.RPC_RUN)]
    known = dict.fromkeys((_id(worker), str(worker.get("name", "?"))) for worker in workers)
    waits = [RpcWait(row[BEGIN], row[END], threads.get(row[THREAD], 0)) for row in rows(Kind.RPC_WAIT)]
    return RankRpc(tuple(known), tuple(calls), tuple(runs), tuple(waits))


def _id(worker: Mapping[str, Any]) -> int:
    said = worker.get("id")
    return said if isinstance(said, int) else -1


def _call(
    row: Row, done: Row | None, gradients: Mapping[int, int], text: Callable[[int], str], threads: Mapping[int, int]
) -> RpcCall:
    return RpcCall(
        id=row[A],
        op=RpcOp(row[F]),
        function=text(row[NAME]),
        callee=text(row[D]),
        is_internal=bool(row[FLAGS] & RpcFlag.INTERNAL),
        is_native=bool(row[FLAGS] & RpcFlag.NATIVE),
        begin_at_ns=row[BEGIN],
        issued_at_ns=row[END],
        done_at_ns=done[BEGIN] if done else None,
        error=text(done[NAME]) or None if done else None,
        nbytes_out=_measured(row[B]),
        nbytes_back=_measured(done[B]) if done else None,
        wants_nbytes=row[C],
        gradient_nbytes=gradients.get(done[C]) if done and done[C] else None,
        thread=threads.get(row[THREAD], 0),
        gives_future=bool(row[FLAGS] & RpcFlag.ASYNC_EXECUTION),
    )


def _run(row: Row, answers: Sequence[Row], gradient: int | None, text: Callable[[int], str]) -> RpcRun:
    """A run that raised has two answers: that it raised, and the message that was sent about it."""
    return RpcRun(
        call=row[A] or None,
        function=text(row[NAME]),
        caller=text(row[D]) or None,
        begin_at_ns=row[BEGIN],
        end_at_ns=row[END],
        is_internal=bool(row[FLAGS] & RpcFlag.INTERNAL),
        failed=any(answer[FLAGS] for answer in answers),
        nbytes_in=row[B],
        nbytes_back=_measured(max((answer[B] for answer in answers), default=-1)),
        gradient_nbytes=gradient,
        gives_future=bool(row[FLAGS] & RpcFlag.ASYNC_EXECUTION),
    )


def _measured(nbytes: int) -> int | None:
    return nbytes if nbytes >= 0 else None
