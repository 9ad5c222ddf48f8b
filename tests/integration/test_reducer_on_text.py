"""The training curve on real text is stock DDP's, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.launch import torchrun
from tests.programs.reducer_text import STEPS


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_training_curve_on_real_text_is_stock_ddps(how: str, tmp_path: Path) -> None:
    torchrun("reducer_text.py", tmp_path, how)
    for rank in range(2):
        saved = torch.load(tmp_path / f"text-{rank}.pt")
        stock, own = saved["DistributedDataParallel"], saved["BucketedDataParallel"]
        assert len(stock) == len(own) > STEPS
        assert all(torch.equal(a, b) for a, b in zip(stock, own, strict=True))
        assert sum(own[STEPS - 5 : STEPS]) / 5 < 0.7 * own[0], "nothing was learned: nothing is proven"
