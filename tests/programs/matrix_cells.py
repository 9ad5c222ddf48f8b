"""Operations, ways to call them, sync or async, and groups: each combination is a cell, with what it must leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import P2POp

from tests.programs.matrix_operations import BOUND, ONE, OPERATIONS, ROOTED, Operation, Place, flat


class Expected(NamedTuple):
    """A call that a cell must leave, by hand. `sync`: it was issued with async_op=False. `peer`: global rank that it
    sends to or receives from, or its root."""

    op: str
    nbytes_in: int
    nbytes_out: int
    group: str
    sync: bool = False
    dtype: str = "float32"
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    run: Callable[[], list[torch.Tensor]]
    calls: tuple[Expected, ...] | None  # None: what the witnesses say
    python: bool | None = True  # issued through methods of ProcessGroup; None: in part
    in_thread: bool = False
    alone: bool = False  # without a dispatch mode around it: it would not run as it is
    refused: bool = False  # by torch or Gloo, on every rank

    def prepare(self) -> None:
        """What is compiled is compiled before anything is counted."""
        if self.alone:
            self.run()

    def to_dict(self) -> dict[str, Any]:
        told = {key: getattr(self, key) for key in ("name", "python", "in_thread", "alone", "refused")}
        return told | {"calls": None if self.calls is None else [one._asdict() for one in self.calls]}


def cells(places: dict[str, Place]) -> Iterator[Cell]:
    for where in ("world", "pair"):
        for name, operation in OPERATIONS.items():
            yield from styles(name, operation, places[where], where)
        yield from functionals(places[where], where)
        yield from point_to_point(places[where], where)
        yield from objects(places[where], where)
    for where in ("three", "two of three"):
        if where in places:
            yield from styles("all_gather", OPERATIONS["all_gather"], places[where], where)
        else:
            yield from (Cell(f"no member of {where}", list, ()) for _ in range(4))


def styles(name: str, operation: Operation, place: Place, where: str) -> Iterator[Cell]:
    def cell(style: str, run: Callable[..., Any], *, sync: bool) -> Cell:
        asked = operation.asked(place)
        root = place.ranks[0] if name in ROOTED else None
        call = Expected(operation.recorded, asked.nbytes_in, asked.nbytes_out, place.name, sync, dtype_of(name), root)
        return Cell(f"{name}, {style}, group {where}", lambda: run(operation.asked(place)), (call,))

    function = BOUND[name]
    can_wait, attribute = operation.can_wait, name.partition(",")[0]

    def called(found: Callable[..., Any], asked: Any, **keywords: Any) -> list[torch.Tensor]:
        work = found(*asked.args, group=place.group, **(asked.keywords or {}), **keywords)
        if work is not None:
            work.wait()
        return flat(asked.args)

    def method(asked: Any) -> list[torch.Tensor]:
        work = operation.method(place.group, *asked.args)
        if work is not None:
            work.wait()
        return flat(asked.args)

    yield cell("sync", lambda asked: called(getattr(dist, attribute), asked), sync=can_wait)
    if can_wait:
        yield cell("async", lambda asked: called(getattr(dist, attribute), asked, async_op=True), sync=False)
    yield cell("bound before", lambda asked: called(function, asked), sync=can_wait)
    yield cell("method", method, sync=False)


def dtype_of(name: str) -> str:
    return "" if name.endswith("barrier") else "float32"


def functionals(place: Place, where: str) -> Iterator[Cell]:
    """They are asynchronous: whoever uses the tensor waits."""
    group, one, all_ = place.group, ONE, place.size * ONE
    table: tuple[tuple[str, Callable[[], Any], str, int, int], ...] = (
        ("all_reduce", lambda: functional.all_reduce(place.piece(), "sum", group), "all_reduce", one, 0),
        ("broadcast", lambda: functional.broadcast(place.piece(), 0, group), "broadcast", one, 0),
        (
            "all_gather_single",
            lambda: functional.all_gather_single(place.piece(), 0, group),
            "all_gather_into_tensor_coalesced", one, all_,
        ),
        (
            "reduce_scatter_single",
            lambda: functional.reduce_scatter_single(place.whole(), "sum", 0, group),
            "reduce_scatter_tensor_coalesced", all_, one,
        ),
        (
            "all_to_all_single",
            lambda: functional.all_to_all_single(place.whole(), None, None, group),
            "all_to_all_single", all_, all_,
        ),
        (
            "permute_tensor",
            lambda: functional.permute_tensor(place.piece(), [*range(1, place.size), 0], group),
            "all_to_all_single", one, one,
        ),
        (
            "all_reduce_coalesced",
            lambda: functional.all_reduce_coalesced([place.piece(), place.whole()], "sum", group),
            "all_reduce_coalesced", one + all_, 0,
        ),
        (
            "all_gather_single_coalesced",
            lambda: functional.all_gather_single_coalesced([place.piece(), place.piece()], group),
            "all_gather_into_tensor_coalesced", 2 * one, 2 * all_,
        ),
        (
            "reduce_scatter_single_coalesced",
            lambda: functional.reduce_scatter_single_coalesced([place.whole()] * 2, "sum", [0, 0], group),
            "reduce_scatter_tensor_coalesced", 2 * all_, 2 * one,
        ),
    )  # fmt: skip
    for name, run, op, sent, taken in table:
        call = Expected(op, sent, taken, place.name, peer=place.ranks[0] if op in ROOTED else None)
        yield Cell(f"{name}, functional, group {where}", lambda run=run: flat([run()]), (call,), python=False)  # type: ignore[misc]


def point_to_point(place: Place, where: str) -> Iterator[Cell]:
    """Two by two; of two, the even one sends first."""
    other, group, first = place.rank ^ 1, place.group, place.rank % 2 == 0
    partner = place.ranks[other]
    send = Expected("send", ONE, 0, place.name, peer=partner)
    take = Expected("recv", 0, ONE, place.name, peer=partner)
    anyone = take._replace(op="recv_any_source", peer=None)

    def in_turn(sends: Callable[[torch.Tensor], Any], receives: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
        given, taken = place.piece(), place.piece()
        for act in (lambda: sends(given), lambda: receives(taken))[:: 1 if first else -1]:
            work = act()
            if isinstance(work, dist.Work):
                work.wait()
        return [given, taken]

    def batch() -> list[torch.Tensor]:
        given, taken = place.piece(), place.piece()
        both = [P2POp(dist.isend, given, partner, group), P2POp(dist.irecv, taken, partner, group)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        return [given, taken]

    def cell(name: str, run: Callable[[], list[torch.Tensor]], received: Expected = take) -> Cell:
        calls = (send, received)[:: 1 if first or name.startswith("batch") else -1]
        return Cell(f"{name}, group {where}", run, calls)

    yield cell("send and recv", lambda: in_turn(
        lambda given: dist.send(given, partner, group), lambda taken: dist.recv(taken, partner, group)
    ))  # fmt: skip
    yield cell("isend and irecv", lambda: in_turn(
        lambda given: dist.isend(given, partner, group), lambda taken: dist.irecv(taken, partner, group)
    ))  # fmt: skip
    yield cell("send and recv, method", lambda: in_turn(
        lambda given: group.send([given], other, 7), lambda taken: group.recv([taken], other, 7)
    ))  # fmt: skip
    yield cell("batch_isend_irecv", batch)
    if place.size == 2:  # of more, the message could be another's
        yield cell("recv from anyone", lambda: in_turn(
            lambda given: dist.send(given, partner, group), lambda taken: dist.recv(taken, None, group)
        ), anyone)  # fmt: skip


def objects(place: Place, where: str) -> Iterator[Cell]:
    group, root, size = place.group, place.ranks[0], place.size
    taken, given = ([None] * size, ["a"] * size) if place.is_root else (None, None)

    def sent_objects() -> list[torch.Tensor]:
        partner, some = place.ranks[place.rank ^ 1], [{"rank": 1}, "two"]
        acts = (dist.send_object_list, dist.recv_object_list)
        for act in acts if place.rank % 2 == 0 else acts[::-1]:
            act(some, partner, group)
        return []

    table: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("all_gather_object", lambda: dist.all_gather_object([None] * size, {"rank": place.rank}, group)),
        ("gather_object", lambda: dist.gather_object("a" * 9, taken, root, group)),
        ("broadcast_object_list", lambda: dist.broadcast_object_list(["one", 2], root, group)),
        ("scatter_object_list", lambda: dist.scatter_object_list([None], given, root, group)),
        ("send and recv of objects", sent_objects),
    )
    for name, run in table:
        yield Cell(f"{name}, group {where}", lambda run=run: flat(run()), None)  # type: ignore[misc]
