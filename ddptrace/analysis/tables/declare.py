"""How a table is declared: once, as a field of `Result`.

    class Result:
        launches: Table[LaunchRow] = rank_table(LaunchRow, launch_rows, key=("rank", "step"))  # one line for the reader

The declaration gives the row type, what makes the rows, the key columns, and how live use cuts the table. The rest
follows from it: making the rows of each rank, joining them, aligning their instants, cutting, JSON, data frames, the
reference of columns and the JSON schema. What a column means and its unit stand beside the column, in the row type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ddptrace.analysis.tables.table import Table

Row = TypeVar("Row")
Cut = Callable[[Sequence[Any], Container[int]], tuple[Any, ...]]
"""Takes rows and ordinals of steps, and returns the rows that belong to these steps."""
DECLARATION: Final = "table"
"""Where the metadata of a field has its `Declaration`."""


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


@dataclass(frozen=True, slots=True)
class Declaration:
    """One table of a run."""

    row_type: type[Any]
    key: tuple[str, ...]  # columns that no two rows have the same values in; empty: rows may repeat
    of_rank: Callable[[Any], Iterable[Any]] | None  # makes the rows of one rank, in time order, from its `RankView`
    of_run: Callable[[Any], Iterable[Any]] | None  # makes the rows from all ranks together, from their `RunView`
    cut: Cut | None  # which of a rank's rows belong to some of the steps; None for a table that no rank has alone


def rank_table(
    row_type: type[Row],
    rows: Callable[[Any], Iterable[Row]],
    *,
    key: tuple[str, ...],
    cut: Cut = in_steps,
    joined: Callable[[Any], Iterable[Row]] | None = None,
) -> Any:
    """Declare a table of which each rank's own records give a part.

    Args:
        row_type: Dataclass of the rows.
        rows: Makes one rank's rows from its `RankView`, in time order.
        key: Columns that identify a row.
        cut: Chooses the rows that belong to some of the steps, for live use.
        joined: Makes the table from all ranks' `RunView`. None: the ranks' rows, one rank after another.
    """
    return _field(Declaration(row_type, key, rows, joined, cut))


def run_table(
    row_type: type[Row], rows: Callable[[Any], Iterable[Row]] | None = None, *, key: tuple[str, ...] = ()
) -> Any:
    """Declare a table that is made from all ranks together.

    Args:
        row_type: Dataclass of the rows.
        rows: Makes them from the ranks' `RunView`. None: `combine` fills the table by itself.
        key: Columns that identify a row.
    """
    return _field(Declaration(row_type, key, None, rows, None))


def declared_in(answer: type[Any]) -> dict[str, Declaration]:
    """Return the tables that the fields of a dataclass declare, by name and in order."""
    return {
        field.name: field.metadata[DECLARATION] for field in dataclasses.fields(answer) if DECLARATION in field.metadata
    }


def is_instant(column: str) -> bool:
    """Whether a column of this name is an instant: `at_ns`, or a name that ends in `_at_ns`."""
    return f"_{column}".endswith("_at_ns")


def _field(declaration: Declaration) -> Any:
    empty: Table[Any] = Table(declaration.row_type)
    return dataclasses.field(default=empty, metadata={DECLARATION: declaration})
