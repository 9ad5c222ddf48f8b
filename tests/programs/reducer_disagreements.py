"""Ranks that communicate or convert unlike each other, case by case. `reducer_disagreements.py OUT CASE...`

The last rank does what the others do not; what `reducer_misuse.py` saves is saved.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from ddptrace.reducer import BucketedDataParallel
from tests.programs.reducer_misuse import TIMEOUT_S, Net, Normed, main, odd, step, wrap


def silent(state: object, bucket: Any) -> Any:
    """Sends nothing."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def hook_on_one_rank() -> None:
    model = wrap(Net())
    if odd():
        model.register_comm_hook(model.process_group, fp16_compress_hook)
    step(model)


def another_hook() -> None:
    model = wrap(Net())
    model.register_comm_hook(model.process_group, bf16_compress_hook if odd() else fp16_compress_hook)
    step(model)


def another_hook_inside_torchs_wrapper() -> None:
    model = wrap(Net())
    model.register_comm_hook(None, fp16_compress_wrapper(bf16_compress_hook if odd() else allreduce_hook))
    step(model)


def another_rank_of_power_sgd() -> None:
    model = wrap(Net(width=64))
    model.register_comm_hook(
        PowerSGDState(model.process_group, 4 if odd() else 2, start_powerSGD_iter=2), powerSGD_hook
    )
    for _ in range(4):
        step(model)


def hook_after_a_step_on_one_rank() -> None:
    model = wrap(Net())
    step(model)
    if odd():
        model.register_comm_hook(model.process_group, fp16_compress_hook)
    step(model)


def another_hook_after_a_step() -> None:
    model = wrap(Net())
    step(model)
    model.register_comm_hook(model.process_group, bf16_compress_hook if odd() else fp16_compress_hook)
    step(model)


def hook_that_sends_nothing_on_one_rank() -> None:
    model = wrap(Net())

    def hook(state: object, bucket: Any) -> Any:
        return silent(state, bucket) if odd() else allreduce_hook(model.process_group, bucket)

    model.register_comm_hook(None, hook)
    for _ in range(2):
        step(model)


def hook_that_sends_nothing_for_one_bucket() -> None:
    model = wrap(Net())

    def hook(state: object, bucket: Any) -> Any:
        leaves_out = odd() and bucket.index() == 1
        return silent(state, bucket) if leaves_out else allreduce_hook(model.process_group, bucket)

    model.register_comm_hook(None, hook)
    step(model)


def hooks_that_send_nothing_on_any_rank() -> None:
    """Well: local steps."""
    model = wrap(Net())
    model.register_comm_hook(None, silent)
    for _ in range(3):
        step(model)


def hooks_that_send_past_torch() -> None:
    """Well: they communicate by a way that torch does not know, and on one rank are done before they return."""
    model = wrap(Net())

    def hook(state: object, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        if odd():
            future.set_result(bucket.buffer())
        else:
            threading.Timer(0.2, future.set_result, [bucket.buffer()]).start()
        return future

    model.register_comm_hook(None, hook)
    step(model)


def hook_after_a_step_on_every_rank() -> None:
    """Well: it takes part from then on."""
    model, buckets = wrap(Net()), list[int]()

    def hook(state: object, bucket: Any) -> Any:
        buckets.append(bucket.index())
        return allreduce_hook(model.process_group, bucket)

    step(model)
    model.register_comm_hook(None, hook)
    step(model)
    assert buckets == list(range(len(model.reducer.layout.buckets)))


def half_on_one_rank() -> None:
    model = wrap(Normed())
    step(model)
    if odd():
        model.half()
    step(model)


def half_on_every_rank() -> None:
    model = wrap(Net())
    step(model)
    model.half()
    model(torch.randn(4, 16).half()).sum().backward()


def one_layer_in_double() -> None:
    """In a bucket with others, where the forward looks at another parameter: its gradient is refused as it comes."""
    model = BucketedDataParallel(FirstInDouble(), process_group=dist.new_group(), timeout_s=TIMEOUT_S)
    for _ in range(2):
        step(model)
    model.zero_grad()
    if odd():
        model.module.first.double()
    step(model)


def one_layer_in_double_before_the_buckets_are_rebuilt() -> None:
    model = BucketedDataParallel(FirstInDouble(), process_group=dist.new_group(), timeout_s=TIMEOUT_S)
    step(model)
    model.zero_grad()
    if odd():
        model.module.first.double()
    step(model)


class FirstInDouble(Net):
    """Its first layer runs in whatever it is converted to."""

    def forward(self, inputs: torch.Tensor, *, fails: bool = False, whole: bool = True) -> torch.Tensor:
        hidden = self.first(inputs.to(self.first.weight.dtype)).to(inputs.dtype)
        out: torch.Tensor = self.third(self.second(torch.relu(hidden)))
        return out


def another_shape_after_wrapping() -> None:
    model = wrap(nn.Linear(16, 12))
    if odd():
        model.module.bias.data = torch.zeros(1)
    step(model)


def a_buffer_in_double_on_one_rank() -> None:
    model = wrap(Normed())
    step(model)
    if odd():
        model.module.norm.running_var = model.module.norm.running_var.double()
    step(model)


CASES: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (hook_on_one_rank, another_hook, another_hook_inside_torchs_wrapper, another_rank_of_power_sgd,
                 hook_after_a_step_on_one_rank, another_hook_after_a_step, hook_that_sends_nothing_on_one_rank,
                 hook_that_sends_nothing_for_one_bucket, hooks_that_send_nothing_on_any_rank,
                 hooks_that_send_past_torch, hook_after_a_step_on_every_rank,
                 half_on_one_rank, half_on_every_rank, one_layer_in_double,
                 one_layer_in_double_before_the_buckets_are_rebuilt,
                 another_shape_after_wrapping,
                 a_buffer_in_double_on_one_rank)
}  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], {name: CASES[name] for name in sys.argv[2:]})
