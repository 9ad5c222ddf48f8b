"""Runs to compare, made by hand: what each part of the step takes is said, and how runs differ by chance."""

from __future__ import annotations

import numpy as np

from ddptrace.analysis.diff.one_run import COMPUTE, RunFigures
from ddptrace.analysis.diff.tables import BucketId, Quantity

MS = 1_000_000
BUCKETS = tuple(BucketId(0, (f"layers.{3 - index}.weight",), 1, index, 4_200_000) for index in range(4))
QUANTITIES = (
    Quantity("step", "step"),
    *(Quantity("part", name) for name in ("compute", "exposed_comm", "exposed_memory", "idle")),
    Quantity("total", "comm"),
    *(Quantity("phase", name) for name in ("data", "forward", "backward", "optimizer", "other")),
    *(Quantity("bucket", name, bucket) for bucket in BUCKETS for name in ("exposed", "comm")),
    *(Quantity("rank", name, rank=rank) for rank in range(4) for name in ("compute", "exposed_comm", "idle")),
)
SETTINGS = {"torch": "2.13.0", "world size": "4", COMPUTE: "phases"}


def made_run(
    number: int = 0,
    *,
    side: str = "before",
    at: float = 0,
    noise: float = 0.02,
    wire: dict[int, float] | None = None,
    delayed: dict[int, float] | None = None,
    slow_rank: dict[int, float] | None = None,
    quantities: tuple[Quantity, ...] = QUANTITIES,
    settings: dict[str, str] | None = None,
    evidence: str = "callback",
    blocks: int = 6,
    findings: frozenset[str] = frozenset(),
) -> RunFigures:
    """A step of 40 ms compute, 4 buckets of 2 ms exposed and 3 ms on the wire each, 2 ms idle. `noise`: the standard
    deviation of runs, and of blocks, which stretches compute. `wire`, `delayed`, `slow_rank`: further ms, of a bucket's
    communication and of what is exposed of it, of the latter alone, of a rank's compute. `at`: s, when it began."""
    random = np.random.default_rng([number, side == "after"])
    wire, delayed, slow_rank = wire or {}, delayed or {}, slow_rank or {}

    def values(stretch: float) -> list[float]:
        exposed = [2 + wire.get(k, 0) + delayed.get(k, 0) for k in range(4)]
        comm = [3 + wire.get(k, 0) for k in range(4)]
        ranks = [40 * (1 + stretch) + slow_rank.get(rank, 0) for rank in range(4)]
        compute = sum(ranks) / 4
        step = compute + sum(exposed) + 2
        parts = [compute, sum(exposed), 0, 2]
        phases = [1, 12, step - 18, 3, 2]
        buckets = [value for pair in zip(exposed, comm, strict=True) for value in pair]
        of_ranks = [value for own in ranks for value in (own, sum(exposed), 2)]
        return [step, *parts, sum(comm), *phases, *buckets, *of_ranks]

    whole = random.normal(0, noise)
    jitter = random.normal(0, 0.001, (blocks + 1, len(QUANTITIES)))
    made = np.array([values(whole), *(values(whole + random.normal(0, noise)) for _ in range(blocks))]) * (1 + jitter)
    made[:, 0] = made[:, 1:5].sum(axis=1)
    kept = [QUANTITIES.index(one) for one in quantities if one in QUANTITIES]
    found = made[:, kept] * MS
    return RunFigures(
        f"{side}/{number:02d}", f"{side}-{number:08d}", round(at * 1e9), 100, "all steps", evidence, quantities,
        found[0], found[1:], SETTINGS if settings is None else settings, findings,
    )  # fmt: skip


def made_side(side: str, runs: int, *, first_at: float = 0, **more: object) -> list[RunFigures]:
    """Runs that began 2 s apart; both sides take turns where the other begins a second later."""
    return [made_run(k, side=side, at=first_at + 2 * k, **more) for k in range(runs)]  # type: ignore[arg-type]
