"""A training thread that records nothing for a while is told of with the line it is at; one that trains is not."""

from __future__ import annotations

import contextlib
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ddptrace
from ddptrace.capture.host import looks
from ddptrace.load.run import read_run
from ddptrace.load.tables import Pulse
from ddptrace.record import recorder
from ddptrace.schema import Phase

BEAT_S, QUIET_S, ASLEEP_S = 0.1, 0.4, 1.5
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper looks more often than it does for anybody else."""
    monkeypatch.setattr(recorder, "KEEPER_PERIOD_S", BEAT_S)
    monkeypatch.setattr(looks, "QUIET_NS", round(QUIET_S * 1e9))


def asleep() -> None:
    time.sleep(ASLEEP_S)  # here


def line_of(function: Callable[..., object], marked: str = "# here") -> str:
    """As a call site tells it: of the line that ends so."""
    lines, first = inspect.getsourcelines(function)
    number = next(first + k for k, line in enumerate(lines) if line.rstrip().endswith(marked))
    return f"{HERE}:{number} in {function.__qualname__}"


class Sleepy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            time.sleep(ASLEEP_S)  # here
        return torch.ones(8)


class Net(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        asleep()
        return super().forward(inputs)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override] # as torch has it
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        asleep()
        return gradient


@pytest.fixture(autouse=True, scope="module")
def ready() -> None:
    """What torch imports at the first step takes a while, too."""
    step(nn.Linear(8, 8), torch.ones(2, 8))


def step(model: nn.Module, inputs: torch.Tensor, closure: Callable[[], float] | None = None) -> None:
    Slow.apply(model(inputs)).sum().backward() if isinstance(model, nn.Sequential) else model(inputs).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step(closure)


def pulses_of(folder: Path, program: Callable[[], object]) -> tuple[Pulse, ...]:
    with ddptrace.trace(folder / "run"):
        program()
    (rank,) = read_run(folder / "run").ranks
    assert not rank.dropped
    return tuple(replace(one, site=last_part(one.site), frame=last_part(one.frame)) for one in rank.load.pulses)


def last_part(line: str) -> str:
    """Without folders: which are told depends on where Python is told to import from."""
    return line.rpartition("/")[2]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_rank_asleep_in_its_data_loader_is_told_with_the_line_its_phase_and_its_last_call(
    tmp_path: Path, group: None
) -> None:
    model = nn.Linear(8, 8)

    def train() -> None:
        for batch in DataLoader(Sleepy()):
            step(model, batch)
            dist.all_reduce(torch.ones(4))

    line = line_of(Sleepy.__getitem__)
    found = [one for one in pulses_of(tmp_path, train) if one.site == line]
    assert len(found) >= 2
    assert {(one.phase, one.frame, one.seq) for one in found} == {(Phase.DATA, line, 2)}
    assert max(one.cpu_ns for one in found) - min(one.cpu_ns for one in found) < 0.1e9  # it sleeps


def in_forward() -> None:
    step(Net(8, 8), torch.ones(2, 8))


def in_backward() -> None:
    step(nn.Sequential(nn.Linear(8, 8)), torch.ones(2, 8))


def in_update() -> None:
    def closure() -> float:
        asleep()
        return 0.0

    step(nn.Linear(8, 8), torch.ones(2, 8), closure)


@pytest.mark.parametrize(
    ("program", "phase"),
    [(asleep, None), (in_forward, Phase.FORWARD), (in_backward, Phase.BACKWARD), (in_update, Phase.OPTIMIZER)],
)
def test_what_the_thread_is_in_is_told_too(tmp_path: Path, program: Callable[[], None], phase: Phase | None) -> None:
    found = [one for one in pulses_of(tmp_path, program) if one.site == line_of(asleep)]
    assert len(found) >= 2 and {one.phase for one in found} == {phase}


def test_a_thread_within_a_library_is_told_by_the_programs_line_and_the_innermost(tmp_path: Path) -> None:
    def wait() -> None:
        with contextlib.suppress(queue.Empty):
            queue.Queue[int]().get(timeout=ASLEEP_S)  # here

    number = line_of(wait).partition(" in ")[0]
    found = [one for one in pulses_of(tmp_path, wait) if one.site == f"{number} in wait"]
    assert len(found) >= 2
    assert all(one.frame.startswith("threading.py:") and one.frame.endswith("Condition.wait") for one in found)


def test_a_busy_thread_is_told_from_one_that_sleeps_by_its_processor_time(tmp_path: Path) -> None:
    def busy() -> None:
        until = time.monotonic() + ASLEEP_S
        while time.monotonic() < until:
            pass

    found = pulses_of(tmp_path, busy)
    found = [one for one in found if one.frame.endswith(" in busy")]
    spans = [(b.at_ns - a.at_ns, b.cpu_ns - a.cpu_ns) for a, b in pairwise(found)]
    assert sum(cpu for _, cpu in spans) > 0.1 * sum(wall for wall, _ in spans) > 0


def test_a_rank_that_trains_is_not_told_of_whatever_the_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are far shorter than what counts as quiet, and together far longer; the keeper looks several times in
    each."""
    monkeypatch.setattr(looks, "QUIET_NS", 1_500_000_000)
    model = nn.Linear(8, 8)

    def train() -> None:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            step(model, torch.ones(2, 8))
            time.sleep(3 * BEAT_S)

    assert pulses_of(tmp_path, train) == ()


def test_what_other_threads_record_does_not_hide_that_the_training_is_silent(tmp_path: Path, group: None) -> None:
    stop = threading.Event()

    def communicate() -> None:
        while not stop.wait(0.02):
            dist.all_reduce(torch.ones(4))

    def train() -> None:
        step(nn.Linear(8, 8), torch.ones(2, 8))
        thread = threading.Thread(target=communicate)
        thread.start()
        asleep()
        stop.set()
        thread.join()

    assert sum(one.site == line_of(asleep) for one in pulses_of(tmp_path, train)) >= 2


def test_names_of_very_many_lines_do_not_fill_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the thread stays it is named still."""
    monkeypatch.setattr(looks, "MOST_LINES", 2)
    source = "def moving():\n" + f"    time.sleep({BEAT_S / 2})\n" * 30
    space: dict[str, object] = {"time": time}
    exec(compile(source, "moving.py", "exec"), space)

    def program() -> None:
        space["moving"]()  # type: ignore[operator] # it was made right here
        asleep()

    found = pulses_of(tmp_path, program)
    assert len({one.site for one in found if one.site.startswith("moving.py")}) <= 3
    assert found[-1].site == line_of(asleep)
