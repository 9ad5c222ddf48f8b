"""Trains on the device with one planted cause of lost time: `planted.py OUT RECORDER CAUSE`.

RECORDER is `profiler` (rank R leaves `rank-R.json`, torch.profiler's own file), `trace` (all leave `run/`, with a
profiler window), `events` (all leave `run/`, without one) or `ends` (the same, where the backend does not tell how long
a collective took). Rank R also leaves `told-R.json`: the ledger, when each step was over on the host, and when the host
was in what was planted.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerAction, profile, schedule
from torch.utils.data import DataLoader, Dataset

import ddptrace
from tests.device.device import HERE

BEFORE, MOST_ACTIVE = 2, 12  # steps
ACTIVE: Final = {"late": MOST_ACTIVE}  # in the profiler's window: so many prove that a rank is late
FEW_ACTIVE: Final = 6  # in that of the others
PLANTED_S: Final = 0.1
OWN_WORK_S: Final = 0.05  # of the host between two steps, less than the device has to do
LONG_NS: Final = 40_000_000  # of a kernel
LONG_KERNELS: Final = 4
MANY: Final = 150  # small kernels
WIDTH, BATCH = 16, 4

Planted = Callable[[], AbstractContextManager[None]]  # marks what the host does as the planted cause
Step = Callable[["Training", Planted], None]
Windows = Callable[[int], ProfilerAction]  # of torch.profiler, by step


class Slow(Dataset[torch.Tensor]):
    """Reading a batch takes PLANTED_S."""

    def __len__(self) -> int:
        return BATCH * (BEFORE + MOST_ACTIVE + 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(PLANTED_S / BATCH)
        return torch.randn(WIDTH)


class Training:
    """A small model on the device, and a loader of batches."""

    def __init__(self, layers: int = 2, width: int = WIDTH) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(HERE.name)
        self.model = DistributedDataParallel(model, bucket_cap_mb=CAP_MB) if dist.is_initialized() else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batch = torch.randn(BATCH, width).to(HERE.name)
        self.in_host_memory = torch.randn(BATCH, WIDTH)
        self.side = HERE.module.Stream()
        self.batches = iter(DataLoader(Slow(), batch_size=BATCH))

    def forward(self) -> torch.Tensor:
        return self.model(self.batch).pow(2).mean()

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def long_step(self) -> torch.Tensor:
        """Give the device more to do than the host needs for a step."""
        loss = self.forward()
        self.update(loss)
        for _ in range(LONG_KERNELS):
            HERE.spend(LONG_NS)
        return loss.detach()


def sleep(training: Training, planted: Planted) -> None:
    loss = training.forward()
    with planted():
        time.sleep(PLANTED_S)
    training.update(loss)


def late(training: Training, planted: Planted) -> None:
    loss = training.forward()
    if dist.get_rank() == 1:
        with planted():
            time.sleep(PLANTED_S)
    training.update(loss)


def item(training: Training, planted: Planted) -> None:
    """The host is not ahead when the device has done its work, as it waited for the loss."""
    loss = training.long_step()
    loss.item()
    with planted():
        time.sleep(OWN_WORK_S)


def copy(training: Training, planted: Planted) -> None:
    """The same with a copy of memory that is not pinned."""
    training.long_step()
    training.batch = training.in_host_memory.to(HERE.name)
    with planted():
        time.sleep(OWN_WORK_S)


def ahead(training: Training, planted: Planted) -> None:
    """The same, and the host waits for nothing: the device always has work."""
    training.long_step()
    with planted():
        time.sleep(OWN_WORK_S)


def loader(training: Training, planted: Planted) -> None:
    with planted():
        batch = next(training.batches)
    training.batch = batch.to(HERE.name)
    training.update(training.forward())


def launches(training: Training, planted: Planted) -> None:
    """Nearly each kernel is done before the next one is launched. Reading the loss waits for next to nothing."""
    loss = training.forward()
    training.update(loss)
    with planted():
        for _ in range(MANY):
            training.batch.add_(0.001)
    loss.item()


def beside(training: "Training", planted: Planted) -> None:
    """Another stream computes, and that of the training waits for it, as for a batch that is made ahead."""
    loss = training.forward()
    side, here = training.side, HERE.module.current_stream()
    side.wait_stream(here)
    with HERE.module.stream(side):
        HERE.spend(LONG_NS)
    here.wait_stream(side)
    training.update(loss)


def plain(training: Training, planted: Planted) -> None:
    training.update(training.forward())


CAUSES: Final = (sleep, late, item, copy, ahead, loader, launches, beside)
STEPS: Final[dict[str, Step]] = {one.__name__: one for one in CAUSES}
STEPS |= {"slow": plain, "far_ahead": plain}
LAYERS: Final = {"slow": 4, "far_ahead": 4}  # of the model; 2 in the others
FLOORS_NS: Final = {"slow": (1_000_000, 25_000_000), "far_ahead": (4_000_000, 6_000_000)}
"""How long each kernel and each collective takes at least."""
LARGE: Final = 2048  # width of a model whose communication takes longer than its computation on a device without floors
RANKED: Final = ("late", "slow", "far_ahead")
CAP_MB: Final = 0.0005  # less than one layer: each is a bucket


def main() -> None:
    out, recorder, cause = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    HERE.begin(joins=cause in RANKED)
    rank = dist.get_rank() if dist.is_initialized() else 0
    told: dict[str, Any] = {"ends_ns": [], "planted_ns": []}

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        begin = time.time_ns()
        yield
        told["planted_ns"].append((begin, time.time_ns()))

    training = Training(LAYERS.get(cause, 2), LARGE if cause == "slow" and not HERE.has_ledger else WIDTH)
    STEPS[cause](training, planted)  # what torch does once only is done
    HERE.set_floors_ns(*FLOORS_NS.get(cause, (0, 0)))
    told["planted_ns"].clear()
    HERE.take_ledger()
    active = ACTIVE.get(cause, FEW_ACTIVE)
    with RECORDERS[recorder](out, rank, schedule(wait=BEFORE - 1, warmup=1, active=active, repeat=1)) as after_step:
        for done in range(1, BEFORE + active + 1):
            STEPS[cause](training, planted)
            told["ends_ns"].append(time.time_ns())
            if done == BEFORE:  # the window begins with a device that has nothing to do
                HERE.synchronize()
            after_step()
        HERE.synchronize()  # a training ends with a look at its model
    told["ledger"], _ = HERE.take_ledger()
    (out / f"told-{rank}.json").write_text(json.dumps(told))
    if dist.is_initialized():
        HERE.end()


@contextlib.contextmanager
def by_profiler(out: Path, rank: int, windows: Windows) -> Iterator[Callable[[], None]]:
    with profile(
        activities=HERE.activities,
        schedule=windows,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(out / f"rank-{rank}.json")),
    ) as profiler:
        yield profiler.step


@contextlib.contextmanager
def by_trace(out: Path, rank: int, windows: Windows) -> Iterator[Callable[[], None]]:
    with ddptrace.trace(out / "run", profile=windows):
        yield lambda: None


@contextlib.contextmanager
def by_events(out: Path, rank: int, windows: Windows) -> Iterator[Callable[[], None]]:
    with ddptrace.trace(out / "run"):
        yield lambda: None


@contextlib.contextmanager
def by_ends(out: Path, rank: int, windows: Windows) -> Iterator[Callable[[], None]]:
    def untold(work: dist.Work) -> float:
        raise RuntimeError("this backend was not asked to measure")  # as NCCL without TORCH_NCCL_ENABLE_TIMING

    dist.Work._get_duration = untold  # type: ignore[method-assign]
    with by_events(out, rank, windows) as after_step:
        yield after_step


RECORDERS: Final = {"profiler": by_profiler, "trace": by_trace, "events": by_events, "ends": by_ends}

main()
