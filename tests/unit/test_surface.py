"""A surface that fails: told once, and nothing of it comes into training."""

from __future__ import annotations

import functools
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.capture.steps.finder import StepFinder
from ddptrace.capture.surface import Surface, tolerating


class Untold(Exception):
    def __str__(self) -> str:
        raise LookupError("planted")


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(("error", "told"), [(ValueError("planted"), "ValueError: planted"), (Untold(), "Untold")])
def test_an_error_is_noted_and_stays_out_of_training_whatever_the_program_makes_of_warnings(
    error: Exception, told: str
) -> None:
    notes: list[tuple[str, str]] = []
    surface = Surface("program", lambda kind, message: notes.append((kind.code, message)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert surface.call(failing, error) is None
        assert surface.attempt(failing, error) is None
    assert notes == [("surface-failed", f"ddptrace stopped watching program: {told}")]
    assert not surface.on


def test_a_note_that_cannot_be_taken_stays_out_of_training_too() -> None:
    surface = Surface("program", lambda kind, message: failing(OSError("planted")))
    assert surface.call(failing, ValueError("first")) is None
    assert not surface.on


class Interrupted(Exception):
    """What the program's handler raises."""


def interrupt(*_: object) -> None:
    raise Interrupted


class Interrupts:
    def __call__(self, *_: object) -> None:
        raise Interrupted

    def by_method(self, *_: object) -> None:
        raise Interrupted


HANDLERS = {
    "function": interrupt,
    "partial": functools.partial(interrupt, "of"),
    "object": Interrupts(),
    "method": Interrupts().by_method,
}


@pytest.fixture(params=HANDLERS)
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signals_handler_raises_within_a_hook_reaches_the_program(handled: None) -> None:
    surface = Surface("program", lambda code, message: failing(AssertionError(message)))
    with pytest.raises(Interrupted):
        surface.call(signal.raise_signal, signal.SIGUSR1)
    assert surface.on


@pytest.mark.parametrize("hook", ["forward_begins", "forward_ends", "backward_begins", "backward_ends", "update_ends"])
def test_a_handler_that_raises_within_a_hook_ends_a_step_and_the_next_ones_are_recorded(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGUSR1, interrupt)
    original: Callable[..., Any] = getattr(StepFinder, hook)
    left = [1]

    def interrupted(finder: StepFinder, *args: Any) -> Any:
        if left:
            left.clear()
            signal.raise_signal(signal.SIGUSR1)
        return original(finder, *args)

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    caught = 0
    try:
        with ddptrace.trace(tmp_path / "run"):
            monkeypatch.setattr(StepFinder, hook, interrupted)
            for _ in range(4):
                try:
                    model(torch.ones(1, 2)).sum().backward()
                    optimizer.step()
                except Interrupted:
                    caught += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == 1
    result = ddptrace.analyze(tmp_path / "run")
    assert len(result.steps) >= 3
    assert "surface-failed" not in {finding.code for finding in result.findings}


def test_a_handler_that_raises_within_a_hook_in_backward_ends_the_whole_backward(tmp_path: Path) -> None:
    """A reducer whose backward is cut off accepts no further forward."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    surface = Surface("collectives", lambda code, message: None)
    model = nn.Linear(2, 2)
    hook = surface.guarded(lambda grad: signal.raise_signal(signal.SIGUSR1))
    model.bias.register_hook(lambda grad: hook(grad))
    try:
        with ddptrace.trace(tmp_path / "run"), pytest.raises(Interrupted):
            model(torch.ones(1, 2)).sum().backward()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert model.bias.grad is not None and model.weight.grad is not None
    assert surface.on


def test_what_code_of_the_program_raises_is_tolerated_and_what_it_raises_from_elsewhere_is_not() -> None:
    stop = type("Stop", (Exception,), {"__module__": "train"})
    own: dict[str, Any] = {"__name__": "ddptrace.capture.steps", "tolerating": tolerating}
    exec("def tolerated(error):\n    with tolerating():\n        raise error", own)  # another thread may raise here
    own["tolerated"](ValueError("of the code that runs"))
    with pytest.raises(stop):
        own["tolerated"](stop())
