"""What DistributedDataParallel keeps under private names: here and nowhere else."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.gradients.reducer_records import described


def reducer_parameters(ddp: DistributedDataParallel) -> tuple[list[torch.nn.Parameter], dict[int, str]]:
    """The reducer's parameters in its own order, and their names by index."""
    parameters, _ = ddp._build_params_for_reducer()
    names = {id(p): name for name, p in ddp.module.named_parameters()}
    return parameters, {i: names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)}


def describe_reducer(
    ddp: DistributedDataParallel, parameters: list[torch.nn.Parameter], names: dict[int, str]
) -> dict[str, Any]:
    return {
        "kind": "DistributedDataParallel",
        "module": type(ddp.module).__name__,
        "group": ddp.process_group.group_name,
        "bucket_cap_nbytes": getattr(ddp, "bucket_bytes_cap", None),
        "parameters": described((names[i], parameter) for i, parameter in enumerate(parameters)),
    }


def first_plan(ddp: DistributedDataParallel, parameters: list[torch.nn.Parameter]) -> list[list[int]]:
    """Return the buckets that DDP starts with, by the function and the limits that DDP's constructor uses."""
    limits = _first_limits(ddp)
    sparse = [False] * len(parameters)
    tensors: list[torch.Tensor] = list(parameters)
    plan, _ = _compute_bucket_assignment_by_size(tensors, limits, sparse)
    return [list(bucket) for bucket in reversed(plan)]


def _first_limits(ddp: Any) -> list[int]:
    """Return the limits in bytes. Before torch 2.13 the constructor computed them inline."""
    if hasattr(ddp, "_bucket_config"):
        limits, _ = ddp._bucket_config.compute_bucket_size_limits(
            static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
        )
        return list(limits)
    if getattr(ddp, "bucket_bytes_cap_list", None):
        return list(ddp.bucket_bytes_cap_list)
    if ddp.static_graph or not ddp.find_unused_parameters:
        return [2**63 - 1]
    first = [dist._DEFAULT_FIRST_BUCKET_BYTES] if ddp.bucket_bytes_cap_default else []  # type: ignore[attr-defined]
    return [*first, ddp.bucket_bytes_cap]


def rebuilt_plan(ddp: DistributedDataParallel) -> list[list[int]] | None:
    """Return the buckets since the rebuild; None before it, or while DDP has not reported it yet."""
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    buckets = [[int(index) for index in bucket.split()] for bucket in str(text).split(",")]
    return buckets if text else None
