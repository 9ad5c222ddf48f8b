"""Which rows of a rank's table belong to some of its steps: how live use cuts tables, before it joins the stretches."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")
Cut = Callable[[Sequence[Any], Container[int]], tuple[Any, ...]]
"""Takes rows and ordinals of steps, and returns the rows that belong to these steps."""


def in_steps(rows: Sequence[Row], steps: Container[int]) -> tuple[Row, ...]:
    """Choose the rows whose `step` is one of these."""
    return tuple(row for row in rows if is_in(row.step, steps))  # type: ignore[attr-defined]


def whole_calls(rows: Sequence[Row], steps: Container[int]) -> tuple[Row, ...]:
    """Choose all parts of the collectives that began in these steps."""
    begun = {row.seq for row in rows if row.part == 0 and is_in(row.step, steps)}  # type: ignore[attr-defined]
    return tuple(row for row in rows if row.seq in begun)  # type: ignore[attr-defined]


def left_out(rows: Sequence[Row], steps: Container[int]) -> tuple[Row, ...]:
    """Choose none: the rows are of no step, and live use does without the table."""
    return ()


def is_in(step: int | None, steps: Container[int]) -> bool:
    """Whether `step` is one of `steps`. A range would be searched for None, and damaged records make it very long."""
    return step is not None and step in steps
