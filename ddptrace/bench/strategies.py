"""Stock DDP, the project's own reducer and the rungs below them, as strategies to be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.bench.ladder import AllReduce, Flat, Naive, Overlap, Rung, add_up
from ddptrace.bench.training import Strategy
from ddptrace.reducer import BucketedDataParallel


def stock_ddp(cap_mb: float, name: str = "ddp", **more: Any) -> Strategy:
    """torch's own, gradients as views as ours has them. `cap_mb` in MiB."""
    settings = {"bucket_cap_mb": cap_mb, "gradient_as_bucket_view": True} | more
    return Strategy(name, lambda module: DistributedDataParallel(module, **_alone(settings)))


def bucketed(cap_mb: float, name: str = "bucketed", **more: Any) -> Strategy:
    """Our own. An explicit cap is the first bucket's too, as with DDP."""
    return Strategy(name, lambda module: BucketedDataParallel(module, bucket_caps_mb=[cap_mb], **_alone(more)))


def _alone(settings: dict[str, Any]) -> dict[str, Any]:
    """In a group of its own, as in a program that trains nothing else: models that share one may be told apart in each
    step, which costs time. To be called on every rank."""
    return settings if "process_group" in settings else settings | {"process_group": dist.new_group()}


REDUCERS: Final[dict[str, Callable[..., Strategy]]] = {"ddp": stock_ddp, "bucketed": bucketed}
"""By name, what makes a strategy of a cap in MiB."""


def naive(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("naive", lambda module: Naive(module, all_reduce), _finish)


def flat(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("flat", lambda module: Flat(module, all_reduce), _finish)


def overlap(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("overlap", lambda module: Overlap(module, all_reduce), _finish)


def _finish(wrapped: nn.Module) -> None:
    cast(Rung, wrapped).finish_grad_sync()
