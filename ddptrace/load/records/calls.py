"""Reads of calls who wanted them, when they were over, what all-to-alls send to whom, and which were remote."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ddptrace.load.records.kept import LONG_AGO
from ddptrace.load.records.rank_events import BEGIN, END, FLAGS, NAME, NATIVE, THREAD, A, B, C, D, E, F, Row
from ddptrace.load.tables import MOST_RANKS, Call, PhaseMark, RankRpc, RpcCall, RpcRun, RpcWait
from ddptrace.rows import replaced
from ddptrace.schema import THROUGH, UNKNOWN_ORIGIN, Kind, Origin, Phase, RpcFlag, RpcOp

NO_GRADIENT: Final = ("int", "uint", "bool")
"""Of all that a reducer's C++ reduces in backward, only the bitmap of used parameters has such a dtype."""
ORIGINS: Final = frozenset(Origin)


class CallOrigin(NamedTuple):
    """As in `Call`."""

    origin: str | None
    site: str | None
    through: str | None
    module: str | None
    peer: int | None


class CallOrigins:
    """The origins of one rank's calls. `origins`: its ORIGIN records; `text`: what a string id stands for; `ranks`:
    global ranks of each process group, in the group's order."""

    def __init__(self, origins: Iterable[Row], text: Callable[[int], str], ranks: Mapping[str, Sequence[int]]) -> None:
        self._said = {row[A]: row for row in origins}
        self._text = text
        self._ranks = ranks

    def of(self, call: Row, op: str, dtype: str) -> CallOrigin:
        """`call`: its CALL record."""
        said = self._said.get(call[A])
        if said is None:
            return CallOrigin(_alone(call, op, dtype).word, None, None, None, None)
        origin = Origin(said[FLAGS]) if said[FLAGS] in ORIGINS else _alone(call, op, dtype)
        is_unknown = said[FLAGS] == UNKNOWN_ORIGIN and origin is Origin.PROGRAM
        peer = self._global(self._text(call[D]), said[E] - 1)
        word = None if is_unknown else origin.word
        site, _, through = self._text(said[NAME]).partition(THROUGH)
        return CallOrigin(word, site or None, through or None, self._text(said[D]) or None, peer)

    def _global(self, group: str, rank: int) -> int | None:
        ranks = self._ranks.get(group, ())
        return ranks[rank] if 0 <= rank < len(ranks) else None


def _alone(call: Row, op: str, dtype: str) -> Origin:
    """Return the origin of a call without Python below it: in backward, only DDP issues such all-reduces."""
    if call[E]:
        return Origin.HOOK
    if call[FLAGS] & NATIVE and op.startswith("all_reduce"):
        return Origin.UNUSED_PARAMETERS if dtype.startswith(NO_GRADIENT) else Origin.GRADIENTS
    return Origin.PROGRAM


# When a call was over, as far as the host's own doings tell -----------------------------------------------------------


GRADIENT_DTYPES: Final = ("float", "bfloat", "complex")


def with_proven_ends(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> tuple[Call, ...]:
    """Return the calls with completion stamps cut where the end is known better. A stamp needs the interpreter's lock,
    so it is late by as long as the training thread holds that."""
    calls = tuple(calls)
    over_by = known_over_by(calls, phases)
    return tuple(_cut(call, over_by[call.seq]) if call.seq in over_by else call for call in calls)


def _cut(call: Call, over_by: int) -> Call:
    late = call.done_at_ns is not None and call.done_at_ns > over_by
    return replaced(call, done_at_ns=over_by) if late else call


def known_over_by(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> dict[int, int]:
    """Return, by seq, when the host is known to have gone on, so that the call was complete: the end of its wait, or of
    the backward whose gradients it reduced. This bounds completion stamps too, which come late by as long as the
    training thread holds the interpreter. Calls on a device are left out: the host does not wait for them."""
    backwards = sorted((phase for phase in phases if phase.phase is Phase.BACKWARD), key=lambda one: one.begin_at_ns)
    begins = [phase.begin_at_ns for phase in backwards]
    found: dict[int, int] = {}
    for call in calls:
        if call.on_device:
            continue
        ends = [end for _, end in call.waits]
        # The reducer's own integer map of unused parameters may still run when backward ends.
        if call.is_native and call.reducer is not None and call.dtype.startswith(GRADIENT_DTYPES):
            nth = bisect_right(begins, call.launch_at_ns) - 1
            if nth >= 0 and call.launch_at_ns < backwards[nth].end_at_ns:
                ends.append(backwards[nth].end_at_ns)
        if ends:
            found[call.seq] = min(ends)
    return found


# What all-to-alls send to whom ----------------------------------------------------------------------------------------


def splits_by_call(rows: Iterable[Row]) -> dict[int, tuple[int, ...]]:
    """Return by seq the bytes that a call sends to each rank; calls of which a record is missing are left out. `rows`:
    SPLIT records."""
    even: dict[int, tuple[int, ...]] = {}
    parts: defaultdict[int, dict[int, int]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    for row in rows:
        seq, ranks = row[A], row[E]
        if not 0 < ranks <= MOST_RANKS or min(row[B], row[C]) < 0:
            continue
        if row[FLAGS]:
            even[seq] = (row[B],) * ranks
            continue
        sizes[seq] = ranks
        parts[seq] |= {row[D]: row[B], row[D] + 1: row[C]}
    found = {seq: tuple(parts[seq].get(place, -1) for place in range(ranks)) for seq, ranks in sizes.items()}
    return even | {seq: sent for seq, sent in found.items() if min(sent) >= 0}


# Remote calls ---------------------------------------------------------------------------------------------------------


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
        _rpc_call(row, done.get(row[A]), gradients, text, threads)
        for row in rows(Kind.RPC)
        if row[F] in ops and (row[A] in done or row[BEGIN] > let_go_until)
    ]
    runs = [_rpc_run(row, answers.get(row[C], []), gradients.get(row[C]), text) for row in rows(Kind.RPC_RUN)]
    known = dict.fromkeys((_worker_id(worker), str(worker.get("name", "?"))) for worker in workers)
    waits = [RpcWait(row[BEGIN], row[END], threads.get(row[THREAD], 0)) for row in rows(Kind.RPC_WAIT)]
    return RankRpc(tuple(known), tuple(calls), tuple(runs), tuple(waits))


def _worker_id(worker: Mapping[str, Any]) -> int:
    said = worker.get("id")
    return said if isinstance(said, int) else -1


def _rpc_call(
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


def _rpc_run(row: Row, answers: Sequence[Row], gradient: int | None, text: Callable[[int], str]) -> RpcRun:
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
