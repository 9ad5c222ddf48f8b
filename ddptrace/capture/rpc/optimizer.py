"""`DistributedOptimizer`, whose step is remote calls to the workers that hold the parameters: an update like any other.

Its module takes a second to import, so it is looked for where a program has imported it: at its remote calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from ddptrace.capture.surface import Patches

MODULE: Final = "torch.distributed.optim.optimizer"


class DistributedUpdates:
    """`watched`: makes a method that is an update into one that is told of."""

    def __init__(self, patches: Patches, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.found = False
        self._patches = patches
        self._watched = watched

    def look(self) -> None:
        kind = getattr(sys.modules.get(MODULE), "DistributedOptimizer", None)
        if kind is not None:
            self.found = True
            self._patches.replace(kind, "step", self._watched)
