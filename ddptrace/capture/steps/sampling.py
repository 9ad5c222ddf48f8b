"""Which steps are recorded, if `ddptrace.Keep` wants one in N.

updates     u             u             u             u
forwards      F             F             F             F
steps       ┤     99      ├    100      ├    101      ├
recorded                  [===============)               on with the update before it, off with the forward after it
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.autograd.profiler as autograd_profiler

from ddptrace.capture.surface import Surface
from ddptrace.keep import Keep


class Sampling:
    """Pauses surfaces between recorded steps, the same ones on all ranks. Steps under a profiler are always
    recorded."""

    def __init__(self, keep: Keep, surfaces: Sequence[Surface]) -> None:
        self.live = True
        self._keep = keep
        self._surfaces = surfaces
        self._since = -1  # live without a break since then

    def covers(self, begin: int) -> bool:
        """Whether everything since `begin` was recorded."""
        return self.live and begin >= self._since

    def choose(self, step: int, following: int, at: int) -> None:
        """Choose whether to record from `at` on: what happens then belongs to one of these two steps."""
        keep = self._keep
        wanted = keep.records(step) or keep.records(following) or autograd_profiler._is_profiler_enabled
        if wanted != self.live:
            self.live = wanted
            self._since = at
            for surface in self._surfaces:
                surface.pause(not wanted)
