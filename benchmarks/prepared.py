"""What an experiment does before it forks its ranks, and how long it waits for them."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
from pathlib import Path
from typing import Final

START_S: Final = 60.0
SECONDS_A_STEP: Final = 2.0

IMPORTED: Final = (
    "ddptrace.capture.session", "torch.distributed.fsdp", "torch.fx.experimental.symbolic_shapes", "torch.onnx",
    "sympy",
)  # fmt: skip
"""What every rank uses, and what stock DDP and its optimizers import at their first step."""


def prepare(folder: Path, *modules: str) -> None:
    """Have what ranks need, `modules` among it, before they are forked of this process, and start no threads. Clear
    `folder` of the runs that were there."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in (*modules, *IMPORTED):
        importlib.import_module(module)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").mkdir()
    (folder / "ranks.log").unlink(missing_ok=True)
    gc.collect()
    gc.freeze()


def limit_s(steps: int) -> float:
    """A run that takes longer than this hangs."""
    return START_S + SECONDS_A_STEP * steps
