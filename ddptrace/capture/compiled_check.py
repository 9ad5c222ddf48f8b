"""Checks whether the compiled library works. It runs as a separate process, since the library may crash."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.session import enter, leave
from ddptrace.record.reader import RecordReader
from ddptrace.schema import Kind

STEPS: Final = 5
BY_PYTHON: Final = 3
"""Steps whose bucket Python records: torch rebuilds its buckets after the first and reports that after the second; the
third learns them."""


def check() -> str:
    """Return what is wrong with the library; "" if each bucket has its two records, written by compiled code."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    with tempfile.TemporaryDirectory() as folder:
        session = enter(Path(folder) / "run", profile=None, overwrite=False)
        for _ in range(STEPS):
            model(torch.ones(2, 8)).sum().backward()
        sends = session.collectives.buckets.compiled
        leave(session)
        events = RecordReader(session.folder).read().events
    dist.destroy_process_group()
    records = list(zip(*(events[name].tolist() for name in ("kind", "a", "f")), strict=True))
    sent = {seq for kind, seq, reducer in records if kind == Kind.CALL and reducer}
    ended = {seq for kind, seq, _ in records if kind == Kind.DONE} & sent
    found = len(sent), len(ended), 0 if sends is None else sends.taken
    wanted = STEPS, STEPS, STEPS - BY_PYTHON
    return "" if found == wanted else f"buckets sent, ended and taken by it are {found} instead of {wanted}"


if __name__ == "__main__":
    sys.exit(check() or 0)
