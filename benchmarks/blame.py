"""Planted causes: real ranks of which one is late for a known cause, and whether the analysis finds it.

Each run is one job, with a plant on one of its ranks, drawn at random from a seed, or without. The plant is on and off
in blocks of steps, so that the run itself shows its cost. Then the run is analyzed as any other: it has to name the
late rank first, with the right cause and the measured cost; in a healthy run it must name nobody."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import blame_quota as quota
from benchmarks import hosts
from benchmarks.blame_plants import BLOCK_STEPS, PLANTS, Planted, as_json, share_on, truth_of
from benchmarks.blame_program import Order, be_rank
from benchmarks.blame_sheet import HEALTHY, sheet
from benchmarks.forks import in_forks, limit_s, prepare
from ddptrace.bench.conduct import held
from ddptrace.bench.experiment import known
from ddptrace.bench.job import device_name
from ddptrace.bench.launch import refuse_too_many
from ddptrace.bench.traced import analysis
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.sheet_page import write_sheet

LEAST_STEPS: Final = 4 * BLOCK_STEPS
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`runs`: of each plant, over all numbers of ranks. `healthy`: runs without a plant, of each number of ranks.
    `keeps_runs`: keep all traced runs, not only those in which the analysis was wrong."""

    ranks: tuple[int, ...] = (2, 4)
    runs: int = 10
    healthy: int = 30
    plants: tuple[str, ...] = tuple(PLANTS)
    steps: int = 200
    keeps_runs: bool = False

    def __post_init__(self) -> None:
        known("plant", self.plants, PLANTS)
        if min(self.ranks) < 2:
            raise DdptraceError("a late rank needs others that wait: start at least 2 (--ranks 2)")
        refuse_too_many(max(self.ranks))
        if self.steps < LEAST_STEPS:
            raise DdptraceError(
                f"plants are on and off in blocks of {BLOCK_STEPS} steps: {self.steps} steps are too few, use"
                f" {LEAST_STEPS} or more"
            )


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. `plant`: its name, or `HEALTHY`."""

    plant: str
    ranks: int
    late: int
    turn: int

    @property
    def name(self) -> str:
        return f"{self.plant}-{self.turn}-{self.ranks}-ranks"


def bench_blame(options: Options, folder: Path, progress: Progress) -> Sheet:
    """Make and judge all runs, and write blame.json, blame.md and blame.html into `folder`.

    Raises: DdptraceError if a rank fails, and if another benchmark writes into the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        left_out = refusals(options)
        trials = list(trials_of(options, left_out))
        prepare(folder, "ddptrace.analyzer")
        runs = [_run(trial, options, folder, progress, f"{at} of {len(trials)}") for at, trial in zip(count(1), trials)]
        made = sheet(_setup(options), left_out, runs)
        data = {"options": asdict(options), "left_out": dict(left_out), "runs": runs}
        write_sheet(made, data, folder)
    return made


def refusals(options: Options) -> dict[str, str]:
    """Return the plants among those asked for that this machine cannot have, and why."""
    asked = {"hosts": hosts.refusal, "quota": quota.refusal}
    needs = {name: PLANTS[name].needs for name in options.plants}
    answers = {need: asked[need]() for need in sorted(set(needs.values()) & set(asked))}
    return {name: answers[need] for name, need in needs.items() if answers.get(need)}


def trials_of(options: Options, left_out: Mapping[str, str]) -> Iterator[Trial]:
    """Yield the runs in turns, so that a machine that gets slower slows all kinds: each plant once, healthy runs
    between."""
    plants = [name for name in options.plants if name not in left_out]
    for turn in range(max(options.runs, options.healthy)):
        if turn < options.runs:
            for name in plants:
                yield _planted(name, turn, options.ranks)
        if turn < options.healthy:
            for ranks in options.ranks:
                yield Trial(HEALTHY, ranks, 0, turn)


def _planted(name: str, turn: int, ranks: tuple[int, ...]) -> Trial:
    of = ranks[turn % len(ranks)]
    return Trial(name, of, random.Random(f"{name} {turn}").randrange(of), turn)


def _run(trial: Trial, options: Options, folder: Path, progress: Progress, which: str) -> dict[str, Any]:
    """Make one run. Returns what was planted, what it really cost, and what the analysis says."""
    path, log = folder / "runs" / trial.name, folder / "ranks.log"
    times = _train(trial, options.steps, path, log)
    (found,) = in_forks([partial(judge, path)], log, limit_s(options.steps))
    run: dict[str, Any] = {"truth": as_json(truth_of(times)), "steps_ns": times} | _asked(trial) | found
    progress(f"{which}: {told(run)}")
    if not options.keeps_runs and is_right(run):
        shutil.rmtree(path)
    return run


def _asked(trial: Trial) -> dict[str, Any]:
    return {"name": trial.name, "plant": trial.plant, "ranks": trial.ranks, "late": trial.late}


def _train(trial: Trial, steps: int, path: Path, log: Path) -> list[list[int]]:
    """Train. Returns the ns of each step, by rank."""
    needs = PLANTS[trial.plant].needs if trial.plant != HEALTHY else ""
    store = Path(f"{path}.store")
    with ExitStack() as made:
        made.callback(store.unlink, missing_ok=True)
        network = made.enter_context(hosts.network(trial.ranks, trial.late)) if needs == "hosts" else None
        group = made.enter_context(quota.group()) if needs == "quota" else None
        order = Order(path, trial.ranks, steps, trial.plant, trial.late, network, group)
        ranks = [partial(be_rank, rank, order) for rank in range(trial.ranks)]
        return in_forks(ranks, log, limit_s(steps))


def judge(path: Path) -> dict[str, Any]:
    """Return what the analysis says of a run. `on_ratio`: the share of its judged steps that had the plant."""
    result = analysis(path)
    judged = sorted({row.step for row in result.blame})
    names = ("rank", "phase", "cause", "cost_ns", "cost_ratio", "low_ns", "high_ns", "persistent", "evidence")
    return {
        "named": [{name: getattr(one, name) for name in names} for one in result.suspects],
        "judged": len(judged),
        "on_ratio": share_on(judged) if judged else 0.0,
        "highest_ratio": _highest_ratio(result),
        "findings": sorted({finding.code for finding in result.findings}),
    }


def _highest_ratio(result: Any) -> float:
    """Return the cost of the most costly rank and phase, named or not: mean over the steps, as a share of the mean
    step."""
    costs: dict[tuple[int, str], list[int]] = {}
    for row in result.blame:
        costs.setdefault((row.rank, row.phase), []).append(row.cost_ns)
    walls = [row.wall_ns for row in result.steps]
    highest = max((sum(values) / len(values) for values in costs.values()), default=0.0)
    return highest / (sum(walls) / len(walls)) if walls else 0.0


def is_right(run: Mapping[str, Any]) -> bool:
    return not run["named"] if run["plant"] == HEALTHY else Planted.of(run).is_cause_right


def told(run: Mapping[str, Any]) -> str:
    """Return one line of progress."""
    named = ", ".join(f"rank {one['rank']}: {one['cause']}" for one in run["named"]) or "nobody"
    what = f"{run['plant']} on rank {run['late']}" if run["plant"] != HEALTHY else "healthy"
    ratio = Planted.of(run).ratio if run["plant"] != HEALTHY else None
    cost = "" if ratio is None else f", cost {ratio:.2f} of the truth"
    return f"{what} of {run['ranks']}: named {named}{cost}{'' if is_right(run) else ' (wrong)'}"


def _setup(options: Options) -> dict[str, str]:
    return {
        "ranks": ", ".join(map(str, options.ranks)),
        "backend": "gloo",
        "device": device_name(torch.device("cpu")),
        "torch": version("torch"),
        "steps": str(options.steps),
    }
