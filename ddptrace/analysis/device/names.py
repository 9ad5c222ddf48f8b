"""Names of ranges without what differs from process to process."""

from __future__ import annotations

import re
from typing import Final

IDENTITY: Final = re.compile(r" at 0x[0-9a-fA-F]+|(?<=CompiledFxGraph) \w{20,}")
"""The address of an object, or the hash of a compiled graph."""
COMPILED: Final = re.compile(r"Torch-Compiled Region|CompiledFxGraph|CompiledFunction")
"""Ranges in which a program that `torch.compile` made runs."""


def without_identity(name: str) -> str:
    """As in `## Call CompiledFxGraph ##`."""
    return IDENTITY.sub("", name)


def is_compiled(name: str) -> bool:
    """Whether a range of this name runs what `torch.compile` made."""
    return COMPILED.search(name) is not None
