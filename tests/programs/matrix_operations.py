"""The operations of the matrix: what each is given, and the bytes that it is given, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceScatterOptions

NUMEL = 6
PIECE_NBYTES = 4 * NUMEL
"""Of one rank's part, in float32."""


@dataclass(frozen=True, slots=True)
class Place:
    """A group, and this rank in it."""

    group: Any
    name: str  # as torch calls it
    ranks: tuple[int, ...]
    rank: int  # in the group

    @classmethod
    def of(cls, group: Any, ranks: list[int]) -> Place:
        return cls(group, group.group_name, tuple(ranks), group.rank())

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def piece(self) -> torch.Tensor:
        return torch.arange(float(NUMEL)) + self.rank

    def pieces(self) -> list[torch.Tensor]:
        return [self.piece() + part for part in range(self.size)]

    def whole(self) -> torch.Tensor:
        return torch.cat(self.pieces())


@dataclass(frozen=True, slots=True)
class Asked:
    """Arguments of a function of torch.distributed, and the bytes in and out, as the witness defines them."""

    args: tuple[Any, ...]
    nbytes_in: int = 0
    nbytes_out: int = 0
    keywords: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    recorded: str
    asked: Callable[[Place], Asked]
    method: Callable[..., Any]  # of the group object, given it and the arguments
    can_wait: bool = True  # takes async_op


ONE, ROOT_SENDS, ROOT_TAKES = PIECE_NBYTES, {"group_src": 0}, {"group_dst": 0}


def in_place(place: Place) -> Asked:
    return Asked((place.piece(),), ONE)


def into_list(place: Place) -> Asked:
    return Asked((place.pieces(), place.piece()), ONE, place.size * ONE)


def into_whole(place: Place) -> Asked:
    return Asked((place.whole(), place.piece()), ONE, place.size * ONE)


def from_list(place: Place) -> Asked:
    return Asked((place.piece(), place.pieces()), place.size * ONE, ONE)


def from_whole(place: Place) -> Asked:
    return Asked((place.piece(), place.whole()), place.size * ONE, ONE)


def gathered(place: Place) -> Asked:
    taken = place.pieces() if place.is_root else None
    return Asked((place.piece(), taken), ONE, place.size * ONE if place.is_root else 0, ROOT_TAKES)


def scattered(place: Place) -> Asked:
    given = place.pieces() if place.is_root else None
    return Asked((place.piece(), given), place.size * ONE if place.is_root else 0, ONE, ROOT_SENDS)


def list_to_list(place: Place) -> Asked:
    return Asked((place.pieces(), place.pieces()), place.size * ONE, place.size * ONE)


def whole_to_whole(place: Place) -> Asked:
    return Asked((place.whole(), place.whole()), place.size * ONE, place.size * ONE)


def uneven(place: Place) -> Asked:
    """Rank r hands d + 1 elements to rank d, and gets r + 1 from each."""
    given, taken = [d + 1 for d in range(place.size)], [place.rank + 1] * place.size
    out, into = torch.zeros(sum(taken)), torch.ones(sum(given))
    return Asked((out, into, taken, given), 4 * sum(given), 4 * sum(taken))


def two_in_place(place: Place) -> Asked:
    return Asked(([place.piece(), place.whole()],), (1 + place.size) * ONE)


def two_into_lists(place: Place) -> Asked:
    lists = [[place.piece(), place.piece()] for _ in range(place.size)]
    return Asked((lists, [place.piece(), place.piece()]), 2 * ONE, 2 * place.size * ONE)


def nothing(place: Place) -> Asked:
    return Asked(())


OPERATIONS = {
    "all_reduce": Operation("all_reduce", in_place, lambda group, one: group.allreduce([one])),
    "broadcast": Operation(
        "broadcast",
        lambda place: Asked((place.piece(),), ONE, 0, ROOT_SENDS),
        lambda group, one: group.broadcast(one, 0),
    ),
    "reduce": Operation(
        "reduce", lambda place: Asked((place.piece(),), ONE, 0, ROOT_TAKES), lambda group, one: group.reduce(one, 0)
    ),
    "all_gather": Operation("all_gather", into_list, lambda group, out, one: group.allgather([out], [one])),
    "all_gather_into_tensor": Operation(
        "all_gather_into_tensor", into_whole, lambda group, out, one: group._allgather_base(out, one)
    ),
    "all_gather_single": Operation(
        "all_gather_into_tensor", into_whole, lambda group, out, one: group.all_gather_single(input=one, output=out)
    ),
    "reduce_scatter": Operation(
        "reduce_scatter", from_list, lambda group, out, given: group.reduce_scatter([out], [given])
    ),
    "reduce_scatter_tensor": Operation(
        "reduce_scatter_tensor",
        from_whole,
        lambda group, out, given: group._reduce_scatter_base(out, given, ReduceScatterOptions()),
    ),
    "reduce_scatter_single": Operation(
        "reduce_scatter_tensor",
        from_whole,
        lambda group, out, given: group.reduce_scatter_single(inputTensor=given, outputTensor=out),
    ),
    "gather": Operation("gather", gathered, lambda group, one, taken: group.gather(taken or [], one, 0)),
    "scatter": Operation("scatter", scattered, lambda group, one, given: group.scatter(one, given or [], 0)),
    "all_to_all": Operation("all_to_all", list_to_list, lambda group, out, given: group.alltoall(out, given)),
    "all_to_all_single": Operation(
        "all_to_all_single", whole_to_whole, lambda group, out, given: group.alltoall_base(out, given, [], [])
    ),
    "all_to_all_single, uneven": Operation(
        "all_to_all_single", uneven, lambda group, *arguments: group.all_to_all_single(*arguments)
    ),
    "all_reduce_coalesced": Operation(
        "all_reduce_coalesced", two_in_place, lambda group, some: group.allreduce_coalesced(some)
    ),
    "all_gather_coalesced": Operation(
        "all_gather_coalesced", two_into_lists, lambda group, out, some: group.allgather_coalesced(out, some)
    ),
    "barrier": Operation("barrier", nothing, lambda group: group.barrier()),
    "monitored_barrier": Operation(
        "monitored_barrier", nothing, lambda group: group.monitored_barrier(), can_wait=False
    ),
}
"""By their names in torch.distributed."""

ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Those with a root: the first rank of their group."""

BOUND = {name: getattr(dist, name.partition(",")[0]) for name in OPERATIONS}
"""As `from torch.distributed import all_reduce` binds it: before any trace."""


def flat(values: Any) -> list[torch.Tensor]:
    """All tensors in a list, at any depth."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [tensor for value in values for tensor in flat(value)] if isinstance(values, list | tuple) else []
