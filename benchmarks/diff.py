"""`ddptrace diff` on runs whose truth is known: are equal sides called equal, and is a planted change found and named?

A try is a few turns of three runs in random order: two plain ones, and one that sends more beside a random bucket. The
plain runs are two equal sides; the first plain ones and the planted ones are two sides that differ. The planted change
takes three times as long as the deviation of plain runs so far.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Final

import torch

from benchmarks import hosts
from benchmarks.diff_program import LAYERS, LINK_BYTES_PER_S, RANKS, Order, be_rank
from benchmarks.diff_sheet import Try, judged, sheet
from benchmarks.forks import in_forks, limit_s, prepare
from ddptrace.bench.conduct import held
from ddptrace.bench.job import device_name
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.sheet_page import write_sheet

LEAST_STEPS: Final = 20
KINDS: Final = ("plain", "equal", "planted")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`runs`: of each side of a try. `deviations`: size of the planted change, in standard deviations of plain runs."""

    tries: int = 20
    runs: int = 6
    steps: int = 60
    deviations: float = 3.0
    keeps_runs: bool = False

    def __post_init__(self) -> None:
        if self.steps < LEAST_STEPS:
            raise DdptraceError(f"{self.steps} steps are too few to compare: use {LEAST_STEPS} or more")
        if self.runs < 2:
            raise DdptraceError("one run per side does not show chance: use 2 or more")


def bench_diff(options: Options, folder: Path, progress: Progress) -> Sheet:
    """Make all runs, compare them, and write diff.json, diff.md and diff.html into `folder`.

    Raises: DdptraceError if a rank fails, if this machine cannot make hosts, and if another benchmark writes into the
    folder.
    """
    why_not = hosts.refusal()
    if why_not:
        raise DdptraceError(f"each rank needs its own host, and {why_not}")
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        prepare(folder)
        with hosts.network(RANKS, 0) as network:
            tries = list(_tries(options, folder, network.namespaces, progress))
        progress("all runs are made; comparing them")
        found = judged(folder / "runs", tries)
        made = sheet(_setup(options), found)
        write_sheet(made, {"options": asdict(options), "tries": [asdict(one) for one in tries]} | found, folder)
        if not options.keeps_runs:
            shutil.rmtree(folder / "runs")
    return made


def _tries(options: Options, folder: Path, namespaces: tuple[str, ...], progress: Progress) -> Iterator[Try]:
    drawn = random.Random(0)
    plain = [[_run(Order(folder / "runs" / "first" / str(at), namespaces, options.steps), folder) for at in range(8)]]
    for at in range(options.tries):
        bucket, planted_ns = drawn.randrange(LAYERS), options.deviations * _deviation(plain)
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(options.runs):
            for kind in drawn.sample(KINDS, len(KINDS)):
                run = folder / "runs" / f"{at:03d}" / kind / str(turn)
                nbytes = round(planted_ns / 1e9 * LINK_BYTES_PER_S) if kind == "planted" else 0
                times[kind].append(_run(Order(run, namespaces, options.steps, bucket, nbytes), folder))
        plain += [times["plain"], times["equal"]]
        deviation_ns = _deviation(plain[-2:])
        longer_ns = fmean(times["planted"]) - fmean(times["plain"])
        load = os.getloadavg()[0]
        progress(
            f"{at + 1} of {options.tries}: {planted_ns / 1e6:.1f} ms planted beside bucket {bucket}, steps"
            f" {longer_ns / 1e6:+.1f} ms, plain runs differ by {deviation_ns / 1e6:.2f} ms, load {load:.1f}"
        )
        yield Try(bucket, planted_ns, deviation_ns, load)


def _run(order: Order, folder: Path) -> float:
    """Make one run. Returns the ns of its typical step by a stopwatch: the mean of the middle half."""
    order.run.parent.mkdir(parents=True, exist_ok=True)
    store = Path(f"{order.run}.store")
    try:
        ranks = [partial(be_rank, rank, order) for rank in range(RANKS)]
        times = in_forks(ranks, folder / "ranks.log", limit_s(order.steps))
    finally:
        store.unlink(missing_ok=True)
    steps = sorted(map(fmean, zip(*times, strict=True)))
    return fmean(steps[len(steps) // 4 : len(steps) - len(steps) // 4])


def _deviation(sides: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within the sides."""
    return math.sqrt(fmean(map(variance, sides)))


def _setup(options: Options) -> Mapping[str, Any]:
    return {
        "ranks": str(RANKS),
        "backend": "gloo",
        "link": "1 Gbit/s",
        "device": device_name(torch.device("cpu")),
        "torch": version("torch"),
        "steps": str(options.steps),
        "runs a side": str(options.runs),
    }
