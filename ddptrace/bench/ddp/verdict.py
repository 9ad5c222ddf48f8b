"""What the ratios say: of our own reducer over all cells, and of every strategy in each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from ddptrace.bench.cells import ratio_interval
from ddptrace.bench.ddp.cell import DDP, NULL, Cell
from ddptrace.bench.statistics import ROUNDS_SURE, Spread, quantile
from ddptrace.render.words import counted, duration, millis

OWN: Final = "bucketed"
TOO_SLOW_RATIO: Final = 1.05
DRAWS: Final = 2000


def verdict(cells: Sequence[Cell]) -> Iterator[str]:
    if all(OWN in cell.strategies for cell in cells):
        yield _over_all(cells)
        yield from _slow_ones(cells)
    for cell in cells:
        others = [name for name in cell.strategies if name not in (DDP, OWN)]
        if others:
            yield _beside(cell, others)


def _over_all(cells: Sequence[Cell]) -> str:
    own, null = (over_cells([cell.ratios(name) for cell in cells]) for name in (OWN, NULL))
    rounds = min(cell.ratio(OWN).count for cell in cells)
    return (
        f"Over {counted(len(cells), 'cell')} the median of the ratios bucketed ÷ ddp is {_told(own, rounds)}; the null "
        f"control's, stock DDP ÷ itself, is {_told(null, rounds)}."
    )


def over_cells(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The median over cells of each cell's median round, and its 95 % interval by resampling the rounds of each cell.
    The cells are these and no sample of others, so they are not resampled."""
    chance = random.Random(0)

    def drawn() -> float:
        return median(median(chance.choices(rounds, k=len(rounds))) for rounds in ratios)

    found = sorted(drawn() for _ in range(DRAWS))
    return median(map(median, ratios)), quantile(found, 0.025), quantile(found, 0.975)


def _told(found: tuple[float, float, float], rounds: int) -> str:
    what = "95 %" if rounds >= ROUNDS_SURE else f"by resampling {counted(rounds, 'round')}"
    return f"{found[0]:.3f} ({what}: {found[1]:.3f} .. {found[2]:.3f})"


def _slow_ones(cells: Sequence[Cell]) -> Iterator[str]:
    """Each cell above the bound by name, with the reason where it is more than noise."""
    slow = [cell for cell in cells if cell.ratio(OWN).median > TOO_SLOW_RATIO]
    if not slow:
        yield f"In no cell bucketed takes more than {TOO_SLOW_RATIO} times as long as stock DDP."
    for cell in slow:
        own, null = cell.ratio(OWN), cell.ratio(NULL)
        ratios = f"{own.median:.3f} ({ratio_interval(own)}), null control {null.median:.3f} ({ratio_interval(null)})"
        where = f"Bucketed is above {TOO_SLOW_RATIO} with {cell.told()}: {ratios}"
        yield f"{where}. {_why(cell)}" if own.low > null.high else f"{where}; that is within the noise."


def _why(cell: Cell) -> str:
    """Where the two traces differ: in exposed communication, or in what the host does for each parameter."""
    own, stock = cell.traced[OWN], cell.traced[DDP]
    if None in (own["exposed_ns"], stock["exposed_ns"], own["window_ns"], stock["window_ns"]):
        return "The traces do not tell where communication was exposed."
    if own["window_ns"] <= stock["window_ns"]:
        return f"The traced steps do not show it ({millis(own['window_ns'])} and {millis(stock['window_ns'])} ms)."
    exposed = own["exposed_ns"] - stock["exposed_ns"]
    rest = own["window_ns"] - stock["window_ns"] - exposed
    each = f"{duration(rest / cell.parameters)} for each of {cell.parameters} parameters"
    return f"In the traces {_more(exposed)} of a step is exposed communication, and {_more(rest)} is all else: {each}."


def _more(ns: int) -> str:
    return f"{millis(abs(ns))} ms {'less' if ns < 0 else 'more'}"


def _beside(cell: Cell, others: Sequence[str]) -> str:
    """Strategies that are slower or faster than stock DDP, and those of which that cannot be told."""
    null, found = cell.ratio(NULL), {name: cell.ratio(name) for name in (*others, OWN) if name in cell.strategies}
    if null.count < ROUNDS_SURE:
        seen = ", ".join(f"{name} {one.median:.2f}" for name, one in found.items())
        return f"{counted(null.count, 'round')} of {cell.told()} came out at {seen} times stock DDP's step, not proven."
    apart = [f"{name} {one.median:.2f}" for name, one in found.items() if _is_apart(one, null)]
    same = [f"{name} {one.median:.2f}" for name, one in found.items() if not _is_apart(one, null)]
    parts = [f"{', '.join(apart)} times stock DDP's"] if apart else []
    parts += [f"not told apart from stock DDP: {', '.join(same)}"] if same else []
    return f"A step of {cell.told()} takes {'; '.join(parts)}; null control {null.median:.3f} ({ratio_interval(null)})."


def _is_apart(found: Spread, null: Spread) -> bool:
    """The two intervals have nothing in common."""
    return found.low > null.high or found.high < null.low
