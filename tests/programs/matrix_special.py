"""Cells beside the grid: element types and shapes, other threads, compiled code, what is refused, what nobody sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import FakeWork
from torch.distributed.distributed_c10d import _coalescing_manager, _world

from tests.programs.matrix_cells import Cell, Expected
from tests.programs.matrix_operations import NUMEL, ONE, Place

NBYTES = {"bool": 1, "int8": 1, "bfloat16": 2, "float64": 8, "complex64": 8, "int64": 8}


def special(place: Place, pair: Place) -> Iterator[Cell]:
    yield from element_types(place)
    yield from shapes(place)
    yield from threads(place)
    yield from compiled(pair)
    yield from coalesced(place)
    yield from refused(place)
    yield from unseen(place)


def element_types(place: Place) -> Iterator[Cell]:
    for name, nbytes in NBYTES.items():
        sent = "float32" if name == "complex64" else name  # torch sends a complex number as two real ones
        call = Expected("all_gather", NUMEL * nbytes, place.size * NUMEL * nbytes, place.name, True, sent)
        yield Cell(f"all_gather of {name}", lambda name=name: gathered(place, getattr(torch, name)), (call,))  # type: ignore[misc]


def gathered(place: Place, dtype: torch.dtype) -> list[torch.Tensor]:
    one = torch.ones(NUMEL, dtype=dtype)
    out = [torch.zeros_like(one) for _ in range(place.size)]
    dist.all_gather(out, one)
    return [some.abs() for some in out] if one.is_complex() else out


def shapes(place: Place) -> Iterator[Cell]:
    def reduced(make: Callable[[], torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        def run() -> list[torch.Tensor]:
            tensor = make()
            dist.all_reduce(tensor)
            return [tensor.to_dense() if tensor.is_sparse else tensor]

        return run

    def call(nbytes: int) -> tuple[Expected]:
        return (Expected("all_reduce", nbytes, 0, place.name, True),)

    yield Cell("all_reduce of a view", reduced(lambda: torch.ones(100)[10:16]), call(ONE))
    yield Cell("all_reduce of a view with gaps", reduced(lambda: torch.ones(12)[::2]), call(ONE))
    yield Cell("all_reduce of nothing", reduced(lambda: torch.ones(0)), call(0))
    yield Cell("all_reduce of a scalar", reduced(lambda: torch.tensor(2.0)), call(4))
    # two elements of a 3 x 4 matrix: 2 x 2 indices in int64 and 2 values
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2], [1, 3]]), torch.ones(2), (3, 4))
    yield Cell("all_reduce of a sparse tensor", reduced(lambda: sparse.clone()), call(2 * 2 * 8 + 2 * 4))


class Doubled(torch.autograd.Function):
    """A layer whose backward sums gradients over the ranks."""

    @staticmethod
    def forward(context: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient * 2


def threads(place: Place) -> Iterator[Cell]:
    def backward() -> list[torch.Tensor]:
        x = place.piece().requires_grad_()
        Doubled.apply(x).sum().backward()
        assert x.grad is not None
        return [x.grad]

    def plain() -> list[torch.Tensor]:
        one = place.piece()
        dist.all_reduce(one)
        return [one]

    def waited_elsewhere() -> list[torch.Tensor]:
        out = functional.all_reduce(place.piece(), "sum", place.group)
        return [functional.wait_tensor(out)]

    def inference() -> list[torch.Tensor]:
        with torch.inference_mode():
            return plain()

    call = (Expected("all_reduce", ONE, 0, place.name, True),)
    yield Cell("all_reduce in a backward", backward, call)
    yield Cell("all_reduce in a backward in another thread", backward, call, in_thread=True)
    yield Cell("all_reduce in another thread", plain, call, in_thread=True)
    yield Cell("all_reduce in inference mode", inference, call)
    yield Cell("all_reduce, functional, in another thread", waited_elsewhere, (call[0]._replace(sync=False),),
               python=False, in_thread=True)  # fmt: skip


def compiled(pair: Place) -> Iterator[Cell]:
    """By inductor, on one pair: inside compiled code each is a functional collective, however it was written."""
    one, all_ = ONE, pair.size * ONE
    if 0 not in pair.ranks:
        yield from (Cell("not in the pair that compiles", list, ()) for _ in range(2))
        return

    def scattered(x: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_single(x, "sum", 0, pair.group)

    def collected(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(pair.size * NUMEL)
        dist.all_gather_into_tensor(out, x, group=pair.group)
        return out

    fast_scatter, fast_gather = torch.compile(scattered), torch.compile(collected)
    yield Cell("reduce_scatter_single, functional, compiled", lambda: [fast_scatter(pair.whole())],
               (Expected("reduce_scatter_tensor_coalesced", all_, one, pair.name),),
               python=False, alone=True)  # fmt: skip
    yield Cell("all_gather_into_tensor, compiled", lambda: [fast_gather(pair.piece())],
               (Expected("all_gather_into_tensor_coalesced", one, all_, pair.name),),
               python=False, alone=True)  # fmt: skip


def coalesced(place: Place) -> Iterator[Cell]:
    one, all_ = ONE, place.size * ONE

    def managed(*, later: bool, act: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        with _coalescing_manager(place.group, async_ops=later) as manager:
            out = act()
        if later:
            manager.wait()
        return out

    def sums() -> list[torch.Tensor]:
        out = [place.piece(), place.piece()]
        for tensor in out:
            dist.all_reduce(tensor, group=place.group)
        return out

    def gathers() -> list[torch.Tensor]:
        out = [place.whole(), place.whole()]
        for tensor in out:
            dist.all_gather_into_tensor(tensor, place.piece(), group=place.group)
        return out

    def scatters() -> list[torch.Tensor]:
        out = [place.piece(), place.piece()]
        for tensor in out:
            dist.reduce_scatter_tensor(tensor, place.whole(), group=place.group)
        return out

    for later in (False, True):
        word = "async" if later else "sync"
        for name, act, call in (
            ("all_reduce", sums, Expected("all_reduce_coalesced", 2 * one, 0, place.name, not later)),
            ("all_gather_into_tensor", gathers,
             Expected("all_gather_into_tensor_coalesced", 2 * one, 2 * all_, place.name, not later)),
            ("reduce_scatter_tensor", scatters,
             Expected("reduce_scatter_tensor_coalesced", 2 * all_, 2 * one, place.name, not later)),
        ):  # fmt: skip
            yield Cell(f"{name} in a coalescing manager, {word}",
                       lambda later=later, act=act: managed(later=later, act=act), (call,))  # type: ignore[misc] # fmt: skip


def refused(place: Place) -> Iterator[Cell]:
    """By torch itself, or by Gloo: the refusal must be the same, and leaves no call."""

    def device_manager() -> list[torch.Tensor]:
        try:
            with _coalescing_manager(place.group, torch.device("cpu")):
                pass
        finally:
            _world.pg_coalesce_state.pop(place.group, None)  # torch leaves it behind
        return []

    def split() -> list[torch.Tensor]:
        dist.split_group(place.group, [[0, 1], [2, 3]])
        return []

    def run(act: Callable[[], object]) -> Callable[[], list[torch.Tensor]]:
        def acted() -> list[torch.Tensor]:
            act()
            return []

        return acted

    table: tuple[tuple[str, Callable[[], object]], ...] = (
        ("all_reduce of strings", lambda: dist.all_reduce("text")),
        ("all_reduce of two in a list", lambda: place.group.allreduce([torch.ones(2), torch.ones(3)])),
        ("all_gather into too few", lambda: dist.all_gather([torch.ones(2)], torch.ones(2))),
        ("broadcast from nobody", lambda: dist.broadcast(torch.ones(2), 99)),
        ("a coalescing manager with a device", device_manager),
        ("split_group", split),
    )
    for name, act in table:
        yield Cell(f"{name}, refused", run(act), (), refused=True)


class Alone(dist.ProcessGroup):
    """A process group written in Python, of one rank."""

    def allreduce(self, tensors: object, options: object) -> dist.Work:
        work: dist.Work = FakeWork()
        return work


def unseen(place: Place) -> Iterator[Cell]:
    """Each is a blind spot of the manifest."""

    def beneath() -> list[torch.Tensor]:
        one = place.piece()
        place.group._get_backend(torch.device("cpu")).allreduce([one], dist.AllreduceOptions()).wait()
        return [one]

    def in_python() -> list[torch.Tensor]:
        one = place.piece()
        dist.all_reduce(one, group=Alone(0, 1))  # type: ignore[call-arg]
        return [one]

    yield Cell("all_reduce on the backend object", beneath, ())
    yield Cell("all_reduce of a group written in Python", in_python, ())
