"""The wrapper under torch.compile.

A compiled backward is one node of the graph: all its gradients are ready at once, at its end, and no communication
hides behind it. So inside a DistributedDataParallel Dynamo splits a graph at the borders of buckets. It finds the
wrapper in a class attribute and reads only its `bucket_bytes_cap`. During our forward, our wrapper is in that
attribute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

SPLIT_AT_LEAST_NBYTES = 1024 * 1024
"""Dynamo splits no finer, and raises for a smaller cap."""


@contextlib.contextmanager
def splitting_at_buckets(module: nn.Module) -> Iterator[None]:
    """Have Dynamo split what it compiles inside, at the borders of buckets of `module.bucket_bytes_cap` bytes."""
    before = DistributedDataParallel._active_ddp_module
    DistributedDataParallel._active_ddp_module = module  # type: ignore[assignment] # only its cap is read
    try:
        yield
    finally:
        DistributedDataParallel._active_ddp_module = before
