"""Tracing changes no bit of what is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddptrace.load.run import read_run
from tests.launch import torchrun


@pytest.mark.parametrize("case", ["plain", "no_sync", "unused", "hook", "compiled"])
def test_losses_and_parameters_are_the_same_bits_with_and_without_tracing(case: str, tmp_path: Path) -> None:
    torchrun("same_bits.py", case, tmp_path / "off")
    torchrun("same_bits.py", case, tmp_path / "on", tmp_path / "run")
    for rank in range(2):
        off = torch.load(tmp_path / f"off-{rank}.pt")
        on = torch.load(tmp_path / f"on-{rank}.pt")
        assert len(off) == len(on) > 10
        assert all(torch.equal(a, b) for a, b in zip(off, on, strict=True))
    run = read_run(tmp_path / "run")
    assert all(rank.calls and rank.steps for rank in run.ranks), "nothing was traced: nothing is proven"
