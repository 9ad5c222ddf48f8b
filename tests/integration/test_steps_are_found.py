"""Steps and phases are found in loops that say nothing about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import RankRun
from ddptrace.schema import Phase, StepEnd

STEPS = 4


def record(path: Path, loop: Callable[[ddptrace.trace], object]) -> RankRun:
    with ddptrace.trace(path) as tracing:
        loop(tracing)
    (rank,) = read_run(path).ranks
    return rank


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch(width: int = 8) -> torch.Tensor:
    return torch.randn(4, width)


def count(rank: RankRun, phase: Phase) -> int:
    return sum(mark.phase is phase for mark in rank.phases)


def in_turn(run: Path) -> str:
    """What is said of optimizers that take turns; nothing where nothing is."""
    return next((one.message for one in ddptrace.analyze(run).findings if one.code == "optimizers-in-turn"), "")


def lines_of(text: str) -> list[int]:
    """Numbers of this file's lines with a text."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    return [number for number, line in enumerate(lines, start=1) if text in line and "lines_of" not in line]


@pytest.fixture
def one_rank_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_plain_loop_has_one_step_per_update_and_its_phases_in_order(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for (inputs,) in DataLoader(TensorDataset(torch.randn(4 * STEPS, 8)), batch_size=4):
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    rank = record(tmp_path / "run", loop)
    assert [step.ordinal for step in rank.steps] == list(range(STEPS))
    assert {step.ended_by for step in rank.steps} == {StepEnd.OPTIMIZER}
    assert all(a.end_at_ns == b.begin_at_ns for a, b in zip(rank.steps, rank.steps[1:], strict=False))
    for step in rank.steps:
        inside = [m.phase for m in rank.phases if step.begin_at_ns <= m.begin_at_ns < step.end_at_ns]
        assert inside[-4:] == [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_gradient_accumulation_is_one_step_with_several_backwards(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for i in range(3 * STEPS):
            model(batch()).sum().backward()
            if i % 3 == 2:
                optimizer.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    for step in rank.steps:
        backwards = [
            m for m in rank.phases if m.phase is Phase.BACKWARD and step.begin_at_ns <= m.begin_at_ns < step.end_at_ns
        ]
        assert len(backwards) == 3


def test_two_optimizers_in_turn_are_two_steps_as_in_a_gan(tmp_path: Path) -> None:
    generator, critic = net(), net()
    g_optimizer = torch.optim.Adam(generator.parameters())
    c_optimizer = torch.optim.Adam(critic.parameters())

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            critic(generator(batch()).detach()).sum().backward()
            c_optimizer.step()  # the critic's
            critic(generator(batch())).sum().backward()
            g_optimizer.step()  # the generator's

    assert len(record(tmp_path / "run", loop).steps) == 2 * STEPS
    told = in_turn(tmp_path / "run")
    # THEN it is said of which, each by the line that updates, and what to do
    for line in lines_of("_optimizer.step()  # "):
        assert f"{Path(__file__).name}:{line} in loop" in told
    assert told.count("Adam of 4 parameters") == 2
    assert "2 optimizers take turns on rank 0" in told and "call t.step() at the end of each iteration" in told


def test_one_scaler_for_two_optimizers_in_turn_tells_them_apart_also_where_it_skips(tmp_path: Path) -> None:
    parts = net(), net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            for part, optimizer in zip(parts, optimizers, strict=True):
                scaler.scale(part(batch()).sum() * 1e30).backward()
                scaler.step(optimizer)
                scaler.update()

    rank = record(tmp_path / "run", loop)
    assert [step.optimizers for step in rank.steps] == [1, 2] * STEPS
    assert "2 times SGD of 4 parameters" in in_turn(tmp_path / "run")


def test_where_the_program_says_its_steps_nothing_is_said_of_turns(tmp_path: Path) -> None:
    parts = net(), net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]

    def loop(tracing: ddptrace.trace) -> None:
        for _i in range(STEPS):
            for part, optimizer in zip(parts, optimizers, strict=True):
                part(batch()).sum().backward()
                optimizer.step()
            tracing.step()

    assert {step.ended_by for step in record(tmp_path / "run", loop).steps} == {StepEnd.SAID}
    assert not in_turn(tmp_path / "run")


def test_two_updates_between_two_forwards_are_one_step(tmp_path: Path) -> None:
    model = net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]  # type: ignore[index]

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert count(rank, Phase.OPTIMIZER) == 2 * STEPS
    assert [step.optimizers for step in rank.steps] == [3] * STEPS
    assert not in_turn(tmp_path / "run")


def test_an_optimizer_inside_an_optimizer_counts_once(tmp_path: Path, one_rank_group: None) -> None:
    model = net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()
            optimizer.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert count(rank, Phase.OPTIMIZER) == STEPS


def test_one_optimizer_per_parameter_inside_backward_counts_once_per_backward(tmp_path: Path) -> None:
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert count(rank, Phase.OPTIMIZER) == STEPS * len(optimizers)


def test_a_scaler_that_skips_the_update_still_ends_the_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    updates = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))

    def loop(_: ddptrace.trace) -> None:
        for i in range(STEPS):
            scale = float("inf") if i % 2 else 1.0
            scaler.scale(model(batch()).sum() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    rank = record(tmp_path / "run", loop)
    assert len(updates) < STEPS, "the scaler skipped none: nothing is tested"
    assert len(rank.steps) == STEPS


def test_updates_by_hand_make_one_step_per_backward(tmp_path: Path) -> None:
    model = net()

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert {step.ended_by for step in rank.steps} == {StepEnd.BACKWARD}
    findings = ddptrace.analyze(tmp_path / "run").findings
    assert "steps-by-backward" in {finding.code for finding in findings}


def test_a_closure_that_runs_the_model_inside_the_update_is_one_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    losses = []  # how often an update asks for one depends on where training begins

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).pow(2).sum()
        loss.backward()
        losses.append(loss)
        return loss

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            optimizer.step(closure)  # type: ignore[arg-type]

    rank = record(tmp_path / "run", loop)
    assert count(rank, Phase.FORWARD) == len(losses) > STEPS
    assert len(rank.steps) == STEPS


def test_said_steps_are_the_only_ones_once_one_was_said(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(tracing: ddptrace.trace) -> None:
        for i in range(2 * STEPS):
            model(batch()).sum().backward()
            optimizer.step()
            if i % 2:
                tracing.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert {step.ended_by for step in rank.steps} == {StepEnd.SAID}


def test_an_evaluation_between_updates_does_not_make_a_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(batch())
                model(batch())

    assert len(record(tmp_path / "run", loop).steps) == STEPS


def test_the_profilers_schedule_counts_steps_and_not_backwards(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with ddptrace.trace(tmp_path / "run", profile=schedule):
        for i in range(3 * 6):
            model(batch()).sum().backward()
            if i % 3 == 2:
                optimizer.step()
    steps = ddptrace.analyze(tmp_path / "run").steps
    assert [step.profiled for step in steps] == [False, False, True, True, False, False]


def test_a_compiled_or_checkpointed_forward_is_a_part_of_its_phase(tmp_path: Path, one_rank_group: None) -> None:
    from torch.utils.checkpoint import checkpoint

    inner = net()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.inner, inputs, use_reentrant=False)
            return out

    model = DistributedDataParallel(Checkpointed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for _i in range(STEPS):
            model(batch()).sum().backward()
            optimizer.step()

    rank = record(tmp_path / "run", loop)
    assert len(rank.steps) == STEPS
    assert count(rank, Phase.FORWARD) == STEPS  # the recomputation in backward belongs to backward


def test_an_optimizer_that_raised_does_not_swallow_the_steps_of_another(tmp_path: Path) -> None:
    model = net()

    class Raising(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise ArithmeticError

    raising, sound = Raising(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(_: ddptrace.trace) -> None:
        for i in range(2 * STEPS):
            model(batch()).sum().backward()
            if i == 1:
                with pytest.raises(ArithmeticError):
                    raising.step()
            else:
                sound.step()

    assert len(record(tmp_path / "run", loop).steps) == 2 * STEPS - 1
