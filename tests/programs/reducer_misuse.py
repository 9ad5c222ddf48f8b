"""Mistakes, one after another, each in a process group of its own. `reducer_misuse.py OUT CASE...`

The last rank makes them. Each rank saves what it was told and after how many seconds, by case.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.checkpoint import checkpoint

from ddptrace.errors import DdptraceError
from ddptrace.reducer import BucketedDataParallel

TIMEOUT_S = 3


def odd() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


class Net(nn.Module):
    """Three layers; raises when asked to, and leaves the last one out when asked to."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, width), nn.Linear(width, 16), nn.Linear(16, 12)

    def forward(self, inputs: Tensor, *, fails: bool = False, whole: bool = True) -> Tensor:
        if fails:
            raise ValueError("no such token")
        hidden: Tensor = self.second(torch.relu(self.first(inputs)))
        return self.third(hidden) if whole else hidden


class Alike(nn.Sequential):
    """Two buckets of one size, which a backend cannot tell from each other."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))


def wrap(module: nn.Module, **options: Any) -> BucketedDataParallel:
    group = options.pop("process_group", None) or dist.new_group()
    return BucketedDataParallel(module, process_group=group, timeout_s=TIMEOUT_S, bucket_cap_mb=0.0005, **options)


def step(model: BucketedDataParallel, **asked: bool) -> None:
    model(torch.randn(4, 16), **asked).sum().backward()


def another_shape() -> None:
    wrap(Net(width=20 if odd() else 16))


def another_shape_in_a_pair() -> None:
    """Ranks train in pairs; the last one has another shape than its partner, the first pair is well."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]
    model = BucketedDataParallel(Net(width=20 if odd() else 16), process_group=pairs[rank // 2], timeout_s=TIMEOUT_S)
    step(model)


def another_order() -> None:
    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
    wrap(nn.ModuleDict(dict(reversed(layers.items())) if odd() else layers))


def another_dtype() -> None:
    wrap(Net().to(torch.float64 if odd() else torch.float32))


def more_parameters() -> None:
    wrap(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3 if odd() else 2))))


def other_settings() -> None:
    wrap(Net(), find_unused_parameters=odd())


def nothing_to_train() -> None:
    wrap(Net().requires_grad_(not odd()))


def never_made() -> None:
    group = dist.new_group()
    if not odd():
        BucketedDataParallel(Net(), process_group=group, timeout_s=TIMEOUT_S)


def forward_without_backward() -> None:
    model = wrap(Net())
    for number in range(4):
        if number == 2 and odd():
            model(torch.randn(4, 16))
        step(model)


def a_parameter_unused() -> None:
    model = wrap(Net())
    for _ in range(2):
        step(model, whole=False)


def a_parameter_unused_on_one_rank() -> None:
    model = wrap(Net())
    for _ in range(3):
        step(model, whole=not odd())


def two_backwards() -> None:
    model = wrap(Net())
    out = model(torch.randn(4, 16), whole=False).sum()
    out.backward(retain_graph=True)
    out.backward()


def forward_raises_and_the_rank_stops() -> None:
    model = wrap(Net())
    step(model)
    step(model, fails=odd())


def forward_raises_and_the_rank_goes_on() -> None:
    model = wrap(Net())
    for number in range(4):
        try:
            step(model, fails=odd() and number == 1)
        except ValueError:
            continue


def loss_raises_and_the_rank_goes_on() -> None:
    model = wrap(Net())
    for number in range(4):
        loss = model(torch.randn(4, 16)).sum()
        if odd() and number == 2:
            continue
        loss.backward()


def a_rank_leaves_its_loop() -> None:
    model = wrap(Net())
    for _ in range(1 if odd() else 2):
        step(model)


def hook_without_future() -> None:
    model = wrap(Net())
    model.register_comm_hook(None, lambda state, bucket: None)  # type: ignore[arg-type,return-value]
    step(model)


def hook_with_half_a_tensor() -> None:
    def halved(state: object, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer()[: bucket.buffer().numel() // 2])
        return future

    model = wrap(Net())
    model.register_comm_hook(None, halved)
    step(model)


def hook_that_is_never_done() -> None:
    model = wrap(Net())
    model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    step(model)


def hook_that_raises() -> None:
    def raising(state: object, bucket: Any) -> Any:
        if odd() and bucket.index() == 1:
            raise ValueError("no room")
        return dist.all_reduce(bucket.buffer(), group=model.process_group, async_op=True).get_future()

    model = wrap(Net())
    model.register_comm_hook(None, raising)
    step(model)


def two_hooks() -> None:
    model = wrap(Net())
    for _ in range(2):
        model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())


def unfrozen_on_one_rank() -> None:
    module = Net()
    module.first.requires_grad_(False)
    model = wrap(module)
    for number in range(3):
        module.first.requires_grad_(odd() and number == 1)
        step(model)


def groups_in_another_order() -> None:
    groups = [dist.new_group() for _ in range(3)]
    wrap(Net(), process_group=[groups[0], *(groups[:0:-1] if odd() else groups[1:])])


def models_in_another_order() -> None:
    group = dist.new_group()
    models = [wrap(Net(), process_group=group), wrap(Net(), process_group=group)]
    for model in reversed(models) if odd() else models:
        step(model)


def models_over_groups_in_turn_in_another_order() -> None:
    """Each is the only one over its first group, and their buckets meet in the second."""
    one, other = dist.new_group(), dist.new_group()
    models = [wrap(Alike(), process_group=groups) for groups in ([one, other], [other, one])]
    for turn in range(3):
        for model in reversed(models) if odd() and turn == 2 else models:
            step(model)


def a_second_model_that_one_rank_cannot_make() -> None:
    """Well: the first one trains on, as it was."""
    group = dist.new_group()
    model = wrap(Net(), process_group=group)
    step(model)
    with contextlib.suppress(DdptraceError):
        wrap("no module" if odd() else Net(), process_group=group)  # type: ignore[arg-type]
    time.sleep(TIMEOUT_S + 2 if odd() else 0)  # the others wait for it in vain
    for _ in range(2):
        step(model)


def extra_forward_where_hooks_join_pairs() -> None:
    """No bucket holds the other pair back."""
    model = wrap(Net())
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    model.register_comm_hook(pairs[dist.get_rank() // 2], allreduce_hook)
    for number in range(4):
        if number == 2 and odd():
            model(torch.randn(4, 16))
        step(model)


def dropped_on_one_rank() -> None:
    model = wrap(Net())
    with model.dropping([model.module.third] if odd() else []):
        out = model(torch.randn(4, 16), whole=not odd())
    out.sum().backward()


def dropped_but_used() -> None:
    model = wrap(Net())
    with model.dropping([model.module.third]):
        out = model(torch.randn(4, 16))
    out.sum().backward()


def sparse_embedding() -> None:
    wrap(nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4)))


def graph_of_gradients() -> None:
    model = wrap(Net())
    model(torch.randn(4, 16)).pow(2).sum().backward(create_graph=True)


def zero_cap() -> None:
    BucketedDataParallel(Net(), bucket_cap_mb=0)


class Failing(torch.autograd.Function):
    """Its backward raises where asked to, after the gradients of what came later are on their way."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, fails: bool) -> Tensor:
        ctx.fails = fails
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.fails:
            raise ValueError("out of memory")
        return gradients[0], None


class FailsInBackward(Net):
    def forward(self, inputs: Tensor, *, fails: bool = False, whole: bool = True) -> Tensor:
        out: Tensor = self.third(Failing.apply(self.second(torch.relu(self.first(inputs))), fails))  # type: ignore[no-untyped-call]
        return out


def backward_raises_and_the_rank_goes_on() -> None:
    model = wrap(FailsInBackward())
    for number in range(4):
        try:
            step(model, fails=odd() and number == 1)
        except ValueError:
            continue


class Normed(Net):
    """Has buffers, which each forward takes from the first rank."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, inputs: Tensor, *, fails: bool = False, whole: bool = True) -> Tensor:
        return super().forward(self.norm(inputs), fails=fails, whole=whole)


def fewer_batches_on_one_rank() -> None:
    """Two epochs, each with an evaluation after it; the last rank has a batch less in each."""
    model = wrap(Normed())
    for _ in range(2):
        for _ in range(2 if odd() else 3):
            step(model)
        with torch.no_grad():
            model(torch.randn(4, 16))


def wrapped_twice() -> None:
    wrap(nn.Sequential(Net(), wrap(Net())))


def two_wrappers_of_one_module() -> None:
    module = Net()
    first, second = wrap(module), wrap(module)
    step(first)
    step(second)  # in turn is well
    (first(torch.randn(4, 16)) + second(torch.randn(4, 16))).sum().backward()


class Recomputed(Net):
    def forward(self, inputs: Tensor, *, fails: bool = False, whole: bool = True) -> Tensor:
        out: Tensor = self.third(checkpoint(self.second, self.first(inputs), use_reentrant=True))
        return out


def recomputed_behind_the_back_of_the_search() -> None:
    step(wrap(Recomputed(), find_unused_parameters=True))


def copied_with_a_group_of_its_own() -> None:
    copy.deepcopy(wrap(Net()))


def a_rank_ends() -> None:
    model = wrap(Net())
    step(model)
    if odd():
        os._exit(0)
    step(model)


CASES: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (another_shape, another_shape_in_a_pair, another_order, another_dtype, more_parameters,
                 other_settings, nothing_to_train,
                 never_made, forward_without_backward, a_parameter_unused, a_parameter_unused_on_one_rank,
                 two_backwards, forward_raises_and_the_rank_stops, forward_raises_and_the_rank_goes_on,
                 loss_raises_and_the_rank_goes_on, a_rank_leaves_its_loop, hook_without_future,
                 hook_with_half_a_tensor, hook_that_is_never_done, hook_that_raises, two_hooks, unfrozen_on_one_rank,
                 groups_in_another_order, models_in_another_order, models_over_groups_in_turn_in_another_order,
                 a_second_model_that_one_rank_cannot_make, extra_forward_where_hooks_join_pairs,
                 dropped_on_one_rank, dropped_but_used, sparse_embedding, graph_of_gradients, zero_cap,
                 backward_raises_and_the_rank_goes_on, fewer_batches_on_one_rank, wrapped_twice,
                 two_wrappers_of_one_module, recomputed_behind_the_back_of_the_search, copied_with_a_group_of_its_own,
                 a_rank_ends)
}  # fmt: skip


def main(out: str, cases: dict[str, Callable[[], None]]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # torch's on create_graph
    dist.init_process_group("gloo")
    store, rank, ranks = _get_default_store(), dist.get_rank(), dist.get_world_size()
    for name, case in cases.items():
        begin, said, kind = time.monotonic(), "", ""
        try:
            case()
        except Exception as error:
            said, kind = str(error), type(error).__name__
        seconds = time.monotonic() - begin
        Path(out, f"{name}-{rank}.json").write_text(json.dumps({"said": said, "kind": kind, "seconds": seconds}))
        store.set(f"{name} is over/{rank}", "")
        waited_for = range(ranks - 1 if name == "a_rank_ends" else ranks)
        store.wait([f"{name} is over/{one}" for one in waited_for], timedelta(seconds=60))
    os._exit(0)  # collectives that will never end are still queued: there is no orderly end


if __name__ == "__main__":
    main(sys.argv[1], {name: CASES[name] for name in sys.argv[2:]})
