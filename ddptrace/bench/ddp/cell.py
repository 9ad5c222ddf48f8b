"""What was measured of one model at one bucket cap, as it comes out of the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

from ddptrace.bench.statistics import Spread
from ddptrace.bench.timing import Rounds

DDP: Final = "ddp"
NULL: Final = "null control"


@dataclass(frozen=True, slots=True)
class Cell:
    """`cap_mb`: in MiB, as it was asked for. `parameters`: tensors. `batch_size`: of one rank.

    `times_ns`: step times by strategy, of the null control too. `watched`: by strategy, `step_ns` and `comm_ns` of the
    steps with a stopwatch. `traced`: by strategy, a `traced.Truth` with `transfer_ns`; empty but on rank 0.
    """

    model: str
    cap_mb: str
    backend: str
    ranks: int
    parameters: int
    nbytes: int
    batch_size: int
    times_ns: dict[str, Rounds]
    watched: dict[str, dict[str, list[int]]]
    traced: dict[str, dict[str, Any]]

    @property
    def strategies(self) -> tuple[str, ...]:
        """Without the null control."""
        return tuple(name for name in self.times_ns if name != NULL)

    def ratios(self, strategy: str) -> list[float]:
        """Of its median step to stock DDP's in the same round, by round."""
        pairs = zip(self.times_ns[strategy], self.times_ns[DDP], strict=True)
        return [median(times) / median(others) for times, others in pairs]

    def ratio(self, strategy: str) -> Spread:
        return Spread.of(self.ratios(strategy))

    def told(self) -> str:
        """Which cell it is, for a sentence."""
        return f"{self.model} at cap {self.cap_mb} MiB on {self.ranks} ranks"

    def comm_ratio(self, strategy: str) -> float | None:
        """The share of the traced step in which the backend communicated, 0..1."""
        true = self.traced[strategy]
        comm, window = true["comm_ns"], true["window_ns"]
        return comm / window if comm is not None and window else None

    def host_ratios(self, strategy: str) -> list[float]:
        """The share of each watched step that the host spent in communication calls, 0..1."""
        seen = self.watched[strategy]
        return [comm / step for comm, step in zip(seen["comm_ns"], seen["step_ns"], strict=True)]

    def host_ratio(self, strategy: str) -> float:
        return mean(self.host_ratios(strategy))

    def host_step_ns(self, strategy: str) -> float:
        """Of the steps with a stopwatch."""
        return mean(self.watched[strategy]["step_ns"])

    def host_comm_ns(self, strategy: str) -> float:
        return mean(self.watched[strategy]["comm_ns"])
