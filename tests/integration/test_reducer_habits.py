"""Habits of training loops that meet the reducer from the side: each gives the bits that stock DDP gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.launch import torchrun
from tests.programs.reducer_habits import HABITS, STEPS


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("habits")
    torchrun("reducer_habits.py", folder, *HABITS)
    return folder


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_gives_the_bits_of_stock_ddp(habit: str, out: Path) -> None:
    ranks = [torch.load(out / f"{habit}-{rank}.pt") for rank in range(2)]
    for saved in ranks:
        assert len(saved["stock"]) == len(saved["own"]) >= (STEPS + 1) * 16
        assert all(torch.equal(a, b) for a, b in zip(saved["stock"], saved["own"], strict=True))
        assert all(torch.isfinite(value).all() for value in saved["own"])
    assert all(torch.equal(a, b) for a, b in zip(ranks[0]["own"], ranks[1]["own"], strict=True)), "ranks went apart"
