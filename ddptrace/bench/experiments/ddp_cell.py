"""One model at one bucket cap, as the ranks measured it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

from ddptrace.bench.timing import Rounds, Spread, ratio

DDP: Final = "ddp"
NULL: Final = "null control"


@dataclass(frozen=True, slots=True)
class Cell:
    """`cap_mb`: in MiB, as the user typed it. `parameters`: number of tensors. `batch_size`: of one rank.

    `times_ns`: step times by strategy, with the null control's. `watched`: by strategy, `step_ns` and `comm_ns` of the
    steps with a stopwatch. `traced`: by strategy, a `TypicalStep` with `transfer_ns`; empty on ranks other than 0.
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
        """All measured strategies, without the null control."""
        return tuple(name for name in self.times_ns if name != NULL)

    def ratios(self, strategy: str) -> list[float]:
        """Return, by round, the strategy's median step over stock DDP's."""
        pairs = zip(self.times_ns[strategy], self.times_ns[DDP], strict=True)
        return [median(times) / median(others) for times, others in pairs]

    def ratio(self, strategy: str) -> Spread:
        return ratio(self.times_ns[strategy], self.times_ns[DDP])

    @property
    def label(self) -> str:
        """The cell's name in a sentence."""
        return f"{self.model} at cap {self.cap_mb} MiB on {self.ranks} ranks"

    def comm_ratio(self, strategy: str) -> float | None:
        """Return the share of the traced step in which the backend communicated, 0..1."""
        typical = self.traced[strategy]
        comm, window = typical["comm_ns"], typical["window_ns"]
        return comm / window if comm is not None and window else None

    def host_ratios(self, strategy: str) -> list[float]:
        """Return the share of each watched step that the host spent in communication calls, 0..1."""
        seen = self.watched[strategy]
        return [comm / step for comm, step in zip(seen["comm_ns"], seen["step_ns"], strict=True)]

    def host_ratio(self, strategy: str) -> float:
        return mean(self.host_ratios(strategy))

    def host_step_ns(self, strategy: str) -> float:
        """Return the mean step with a stopwatch, in ns."""
        return mean(self.watched[strategy]["step_ns"])

    def host_comm_ns(self, strategy: str) -> float:
        return mean(self.watched[strategy]["comm_ns"])
