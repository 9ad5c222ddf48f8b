"""Windows that no schedule opens, on a single rank: nobody has to agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.capture import session
from ddptrace.errors import TraceStateError

MOST_STEPS = 5000


class Training:
    def __init__(self, run: Path) -> None:
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = run

    def step(self) -> None:
        self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()

    @property
    def occasions(self) -> Any:
        assert session._current is not None
        return session._current._occasions

    def until(self, windows: int) -> None:
        """Train until this many windows are saved."""
        for _ in range(MOST_STEPS):
            if len(list(self.run.glob("rank-*/kineto-*.json.gz"))) == windows:
                return
            self.step()
        raise AssertionError("no window")


@contextmanager
def training(run: Path, **options: Any) -> Iterator[Training]:
    with ddptrace.trace(run, **options):
        yield Training(run)


def profiled(result: Result) -> list[int]:
    return [row.step for row in result.steps if row.profiled]


def windows_of(result: Result, code: str) -> list[str]:
    """What findings say behind "the window of"."""
    return [one.message.partition("the window of ")[2] for one in result.findings if one.code == code]


def test_each_request_opens_one_window_of_as_many_steps(tmp_path: Path) -> None:
    with training(tmp_path / "run") as one:
        one.step()
        for count, (request, steps) in enumerate([("a", 2), ("b", 1)], start=1):
            one.occasions.ask(request, steps)
            one.until(count)
            one.occasions.ask(request, steps)  # the file still lies there at the next beat
        one.occasions.ask("c", 1)
        while not torch.autograd.profiler._is_profiler_enabled:
            one.step()
        one.occasions.ask("d", 1)  # within the window
        one.until(4)
    result = ddptrace.analyze(tmp_path / "run")
    first, second, *others = profiled(result)
    assert second == first + 1
    assert len(others) == 3
    assert windows_of(result, "window-asked") == [
        f"steps {first} and {second} on all ranks",
        *(f"step {step} on all ranks" for step in others),
    ]
    assert len(list((tmp_path / "run" / "rank-00000").glob("kineto*"))) == 4


def test_a_window_gives_way_to_a_profiler_of_the_program_and_the_next_one_opens(tmp_path: Path) -> None:
    with training(tmp_path / "run") as one:
        with profile(activities=[ProfilerActivity.CPU]) as theirs:
            one.occasions.ask("a", 2)
            for _ in range(MOST_STEPS):
                one.step()
                if one.occasions._same.due is None and one.occasions._same._granted:
                    break
        one.occasions.ask("b", 1)
        one.until(1)
    assert theirs.events()
    result = ddptrace.analyze(tmp_path / "run")
    assert len(profiled(result)) == 1
    [message] = [one.message for one in result.findings if one.code == "profiler-gave-way"]
    assert message.endswith("ddptrace did not open this one")


def test_a_training_that_ends_before_the_window_says_so(tmp_path: Path) -> None:
    with training(tmp_path / "run") as one:
        one.step()
        one.occasions.ask("a", 2)
        while one.occasions._same.due is None:
            pass
    assert windows_of(ddptrace.analyze(tmp_path / "run"), "window-missed") == ["steps 3 and 4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"factor": 1}, "factor=1; give a number of at least 1.05"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"factor": True}, "factor=True"),
        ({"at_most": 0}, "at_most=0; give a whole number of at least 1"),
        ({"active": 101}, "active=101; give at most 100 steps"),
        ({"active": 1.5}, "active=1.5"),
        ({"ranks": "some"}, "ranks='some'; give \"all\", or ranks such as (0, 1)"),
        ({"ranks": ()}, "ranks=()"),
        ({"ranks": (0, -1)}, "ranks=(0, -1)"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceStateError) as refused:
        ddptrace.when_slow(**options)
    assert said in str(refused.value)


def test_the_class_itself_is_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(TraceStateError, match=r"or ddptrace\.when_slow\(\.\.\.\)"):
        ddptrace.trace(tmp_path, profile=ddptrace.when_slow)  # type: ignore[arg-type]
