"""How the test programs end."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist


def leave() -> None:
    """End without Python's shutdown, in which stock Gloo DDP aborts now and then ("terminate called without an active
    exception"), traced or not."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
