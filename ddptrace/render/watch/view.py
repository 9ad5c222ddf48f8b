"""What a screen shows of a run that goes on, as plain records: all that is drawn is made of these, and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, Literal

from ddptrace.analysis.ranks.digest import RankDigest, match_digests
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Summary, summarize

State = Literal["gone", "silent", "ended", "running"]
STATES: Final[tuple[State, ...]] = ("gone", "silent", "ended", "running")
"""In the order in which ranks are listed. "silent": no record of its training for a while; "gone": it ended without
reporting an error."""

Piece = tuple[str, str]
"""Words, and how they look: "" or a name of `STYLES`."""
Line = tuple[Piece, ...]

STYLES: Final = {
    "head": "bold",
    "faint": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "compute": "green",
    "exposed_comm": "red",
    "exposed_memory": "magenta",
    "idle": "dim",
    "hidden": "green",
    "line": "cyan",
}
"""Of a terminal's own colours only those that can be read on light and on dark ground."""


@dataclass(frozen=True, slots=True)
class RankView:
    """`steps`: that it has ended; `silent_ns`: since its newest record of the training."""

    rank: int
    state: State
    steps: int
    silent_ns: int


@dataclass(frozen=True, slots=True)
class LastSteps:
    """What is known of the last steps of all ranks; made once, drawn often. `lengths_ns`: of each step, the mean over
    its ranks; `meetings`: by rank, where it met others."""

    result: Result
    summary: Summary
    lengths_ns: tuple[float, ...]
    meetings: Mapping[int, RankDigest]


def last_steps(result: Result) -> LastSteps:
    lengths: dict[int, list[int]] = defaultdict(list)
    for row in result.steps:
        lengths[row.step].append(row.wall_ns)
    means = tuple(fmean(lengths[step]) for step in sorted(lengths))
    return LastSteps(result, summarize(result), means, {rank.lag.rank: rank for rank in match_digests(result).ranks})


@dataclass(frozen=True, slots=True)
class View:
    """`path`: as the user gave it, for commands to be typed. `ranks`: of the newest attempt; `last`: their last steps,
    None before the first. `left_s`: a job whose ranks are gone may be started anew for so long yet. `notes`: what is
    missing, a sentence each. `every_s`: between two looks, None where there was one only."""

    path: str
    is_there: bool
    run_id: str = ""
    attempt: int = 0
    world_size: int | None = None
    ranks: tuple[RankView, ...] = ()
    last: LastSteps | None = field(default=None, repr=False)
    is_behind: bool = False
    is_over: bool = False
    left_s: float | None = None
    notes: tuple[str, ...] = ()
    every_s: float | None = 1.0
    keys: bool = False  # they are listened to

    def of(self, state: State) -> list[RankView]:
        return [rank for rank in self.ranks if rank.state == state]


def width_of(line: Sequence[Piece]) -> int:
    """In signs; more than columns where one of them takes none, fewer where one takes two."""
    return sum(len(words) for words, _ in line)
