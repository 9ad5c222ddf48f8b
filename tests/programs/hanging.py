"""Trainings that hang in step 5, each for another reason. `hanging.py FOLDER JOB...`, a job being WAY:RANKS:CULPRITS as
in `data:4:1,2`. The culprits do something else than the other ranks: see `WAYS`.

Each writes to FOLDER/WAY/run. Nothing ends one but a signal, or its ranks' own failing.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.rpc_workers import fork_workers
from tests.ranks import IMPORTED

HANGING_STEP = 5
FOREVER_S = 120
WIDTH = 64
FEW = 100_000  # elements; where Gloo expects less it ends the process
SMALL, LARGE = 1 << 20, 1 << 22  # elements; Gloo sends both in parts of one size, and so the rank of the larger waits


@dataclass(frozen=True)
class Job:
    folder: Path
    way: str
    ranks: int
    culprits: frozenset[int]


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, sleeps_at: int) -> None:
        self.sleeps_at = sleeps_at

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.sleeps_at:
            time.sleep(FOREVER_S)
        return torch.ones(WIDTH)


class Net(torch.nn.Module):
    """`seconds`: each forward takes so long."""

    def __init__(self, sleeps_at: int, seconds: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.sleeps_at, self.seconds, self.calls = sleeps_at, seconds, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FOREVER_S if self.calls == self.sleeps_at else self.seconds)
        self.calls += 1
        return self.layer(x)


def share_loss(elements: int = 4) -> None:
    dist.all_reduce(torch.ones(elements))


def skip(is_culprit: bool) -> None:
    if not is_culprit:
        share_loss()


def order(is_culprit: bool) -> None:
    both: list[Callable[[], object]] = [share_loss, lambda: dist.broadcast(torch.ones(8), 0)]
    for one in reversed(both) if is_culprit else both:
        one()


def size(is_culprit: bool) -> None:
    share_loss(LARGE if is_culprit else SMALL)


def crash(is_culprit: bool) -> None:
    """What the culprit sends is there before the other rank asks for less."""
    if not is_culprit:
        time.sleep(0.5)
    share_loss(FEW if is_culprit else 4)


def kill(is_culprit: bool) -> None:
    if is_culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    share_loss()


def stop(is_culprit: bool) -> None:
    if is_culprit:
        os.kill(os.getpid(), signal.SIGSTOP)
    share_loss()


def fail(is_culprit: bool) -> None:
    if is_culprit:
        raise ValueError("the loss is not finite")
    share_loss()


def p2p(is_culprit: bool) -> None:
    """Rank 0 expects what the culprit does not send."""
    if is_culprit:
        time.sleep(FOREVER_S)
    elif dist.get_rank() == 0:
        dist.recv(torch.ones(4), 1)


WAYS = {
    "skip": skip, "order": order, "size": size, "crash": crash, "kill": kill, "stop": stop, "fail": fail, "p2p": p2p,
}  # fmt: skip
"""Instead of sharing the loss. Beside them: "data", "forward" (the culprit sleeps in there), "slow" and "well"."""


def train(job: Job, rank: int) -> None:
    is_culprit = rank in job.culprits
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{job.folder / 'store'}", rank=rank, world_size=job.ranks)
    sleeps_at = {one: HANGING_STEP if job.way == one and is_culprit else -1 for one in ("data", "forward")}
    model = DistributedDataParallel(Net(sleeps_at["forward"], 1.0 if job.way == "slow" and is_culprit else 0.02))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.utils.data.DataLoader(Samples(sleeps_at["data"]))
    with ddptrace.trace(job.folder / "run"):
        for step, batch in enumerate(batches):
            model(batch).sum().backward()
            if step == HANGING_STEP and job.way in WAYS:
                WAYS[job.way](is_culprit)
            else:
                share_loss()
            dist.barrier()
            optimizer.step()
            optimizer.zero_grad()


def run(job: Job) -> None:
    job.folder.mkdir(parents=True)
    fork_workers(job.ranks, lambda rank: train(job, rank))


def job_of(folder: str, text: str) -> Job:
    way, ranks, culprits = text.split(":")
    return Job(Path(folder, way), way, int(ranks), frozenset(map(int, culprits.split(","))))


def main(folder: str, *jobs: str) -> None:
    """One process for each, which has its ranks below it. What they all import is imported once."""
    for module in (*IMPORTED, "ddptrace.capture.session"):
        importlib.import_module(module)
    pids = []
    for text in jobs:
        pid = os.fork()
        if not pid:
            run(job_of(folder, text))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
