"""`DistributedOptimizer`: its step makes remote calls to the workers that hold the parameters, and is an update too.

Its module takes a second to import, so it is looked up at remote calls, once the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from ddptrace.capture.surface import Patches

MODULE: Final = "torch.distributed.optim.optimizer"


class DistributedUpdates:
    """`watched`: wraps a method that is an update, so that it is recorded."""

    def __init__(self, patches: Patches, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.found = False
        self._patches = patches
        self._watched = watched

    def look(self) -> None:
        kind = getattr(sys.modules.get(MODULE), "DistributedOptimizer", None)
        if kind is not None:
            self.found = True
            self._patches.replace(kind, "step", self._watched)
