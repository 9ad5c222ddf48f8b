"""Trains for a while and counts what the store holds. `reducer_keys.py OUT`

Rank 0 saves, by case, the number of keys after each step; nothing else talks to the store meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from ddptrace.reducer import BucketedDataParallel, peers
from tests.programs.reducer_disagreements import silent
from tests.programs.reducer_misuse import Net, odd, step

STEPS = 50
ANSWERED_STEPS = 8


def hooks_that_send_nothing(after_step: Callable[[], None]) -> None:
    model = wrap()
    model.register_comm_hook(None, silent)
    for _ in range(STEPS):
        step(model)
        after_step()


def hooks_that_send_nothing_on_one_rank(after_step: Callable[[], None]) -> None:
    """The other rank's are done too: it answers in its looks, which are made to come sooner than after a second."""
    model, slice_s = wrap(), peers.SLICE_S
    model.register_comm_hook(None, silent_on_one_rank)
    peers.SLICE_S = 0.1
    for _ in range(ANSWERED_STEPS):
        step(model)
        after_step()
    peers.SLICE_S = slice_s


def silent_on_one_rank(state: object, bucket: Any) -> Any:
    """The other rank's future is done too, but is not one that a hook finishes itself."""
    if odd():
        return silent(state, bucket)
    future: Any = torch._C.Future([])
    future.set_result(bucket.buffer())
    return future


def freezing_and_unfreezing(after_step: Callable[[], None]) -> None:
    model = wrap()
    for number in range(STEPS):
        model.module.first.requires_grad_(number % 2 == 0)
        step(model)
        after_step()


def dropping(after_step: Callable[[], None]) -> None:
    model = wrap()
    for number in range(STEPS):
        with model.dropping([model.module.third] if number % 2 else []):
            out = model(torch.randn(4, 16), whole=not number % 2)
        out.sum().backward()
        after_step()


CASES = [hooks_that_send_nothing, hooks_that_send_nothing_on_one_rank, freezing_and_unfreezing, dropping]


def wrap() -> BucketedDataParallel:
    return BucketedDataParallel(Net(), bucket_cap_mb=0.0005, timeout_s=20)


def main(out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    store = _get_default_store()
    for case in CASES:
        counts: list[int] = []

        def after_step(counts: list[int] = counts) -> None:
            dist.barrier()
            counts.append(store.num_keys())
            dist.barrier()

        case(after_step)
        if not odd():
            Path(out, f"{case.__name__}.json").write_text(json.dumps(counts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
