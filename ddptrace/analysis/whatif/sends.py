"""What one backward sent, on the clock of one rank. Clocks of the ranks are not compared: all ranks end a collective
together, and the one that waited least for its end came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.intervals import Ints, merged
from ddptrace.analysis.whatif.observed import DONE, LAUNCH, NBYTES
from ddptrace.analysis.whatif.play import Floats


@dataclass(frozen=True, slots=True)
class Sends:
    """One backward's buckets in launch order: when the last rank came, when they were over, bytes. One rank's clock."""

    arrived_ns: Floats
    done_ns: Floats
    nbytes: Ints

    @property
    def busy(self) -> Floats:
        """Union of what was sent, shape (n, 2)."""
        return np.array(merged(zip(self.arrived_ns.tolist(), self.done_ns.tolist(), strict=True)))

    @property
    def were_alone(self) -> NDArray[np.bool_]:
        """Which buckets had the wire to themselves all the while."""
        before = np.concatenate([[-np.inf], np.maximum.accumulate(self.done_ns)[:-1]])
        after = np.concatenate([np.minimum.accumulate(self.arrived_ns[::-1])[::-1][1:], [np.inf]])
        return (self.arrived_ns >= before) & (self.done_ns <= after)


def sends_of(sent: Sequence[Ints]) -> Sends:
    """`sent`: of each rank, as in `ObservedStep`; on the clock of the first."""
    taken = np.min([one[:, DONE] - one[:, LAUNCH] for one in sent], axis=0)
    done = sent[0][:, DONE].astype(float)
    return Sends(np.maximum.accumulate(done - taken), done, sent[0][:, NBYTES])
