"""Faults of a tracer, planted in ours: the sweep must see each of them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from ddptrace.capture.steps.program_hooks import Program

VARIABLE: Final = "HOSTILE_FAULT"
SMALL: Final = 1e-7


def changes_a_gradient(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"][0].grad.view(-1)[0] += SMALL


def prints_a_line(optimizer: torch.optim.Optimizer) -> None:
    print("ddptrace: one update")


def warns_of_something(optimizer: torch.optim.Optimizer) -> None:
    print("ddptrace: one update", file=sys.stderr)


def draws_a_random_number(optimizer: torch.optim.Optimizer) -> None:
    torch.rand(())


def replaces_a_function(optimizer: torch.optim.Optimizer) -> None:
    """Leave a function of torch replaced."""
    torch.zeros = functools.wraps(torch.zeros)(lambda *args, **kwargs: None)


def changes_the_exit_code(optimizer: torch.optim.Optimizer) -> None:
    sys.stdout.flush()
    os._exit(3)


FAULTS: Final[dict[str, Callable[[torch.optim.Optimizer], None]]] = {
    fault.__name__: fault
    for fault in (
        changes_a_gradient,
        prints_a_line,
        warns_of_something,
        draws_a_random_number,
        replaces_a_function,
        changes_the_exit_code,
    )
}
"""What a faulty tracer does before the first update."""


def plant(name: str | None) -> None:
    """Have ddptrace do it in this process; nothing where `name` is None."""
    if name is None:
        return
    begins, left = Program._update_begins, [FAULTS[name]]

    def update_begins(self: Program, optimizer: Any) -> None:
        if left:
            left.pop()(optimizer)
        begins(self, optimizer)

    Program._update_begins = update_begins  # type: ignore[method-assign]
