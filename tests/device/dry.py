"""The test device under CUDA's names, as far as these tests use them: what runs with `DEVICE=cuda` is tried without a
GPU. `torch.cuda` itself stays as it is, but for these names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import torch

from tests.device import testdev

NCCL_VERSION: Final = (2, 0, 0)


def install() -> None:
    names = {
        "Event": testdev.Event,
        "Stream": testdev.Stream,
        "_sleep": testdev.spend,  # a cycle takes a nanosecond
        "get_device_name": lambda: testdev.NAME,
        "nccl": SimpleNamespace(version=lambda: NCCL_VERSION),
        "set_device": lambda device: None,
        "synchronize": torch.testdev.synchronize,  # type: ignore[attr-defined]
    }
    for name, member in names.items():
        setattr(torch.cuda, name, member)
