"""What a program leaves behind is found in modules and in classes, and what it puts back is not."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.hostile import left


def test_an_attribute_that_is_set_anew_or_added_is_found_until_it_is_put_back() -> None:
    left.remember()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", lambda self: None)
        patch.setattr(nn, "Linear", nn.Module)
        patch.setattr(threading, "added", 1, raising=False)
        assert left.changed() == ["threading.added", "torch.Tensor.backward", "torch.nn.Linear"]
    assert left.changed() == []
