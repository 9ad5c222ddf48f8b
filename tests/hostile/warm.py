"""Imports what hostile programs need before they are forked, and takes the state that they must leave."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.profiler._cupti_monitor

import ddptrace.capture.rpc.calls
import ddptrace.capture.session
import ddptrace.record.directory  # noqa: F401
from tests.hostile import left
from tests.hostile.registry import load

_ = torch.ops.c10d, torch.ops._c10d_functional  # made when first asked for, by programs and by ddptrace alike
_ = isinstance(
    None, type("Opaque", (torch._opaque_base.OpaqueBase,), {})
)  # torch keeps what it finds at the first look
load()
left.remember()
assert len(list(Path("/proc/self/task").iterdir())) == 1, (
    "threads do not survive a fork: import nothing that starts one"
)
